"use strict";
// Pages work without this. It shows times in the reader's zone.
(() => {
  const at = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  for (const time of document.querySelectorAll("time[datetime]")) {
    const local = at.format(new Date(time.dateTime));
    if ("relative" in time.dataset) time.title = local;
    else {
      time.title = time.textContent;
      time.textContent = local;
    }
  }
})();
