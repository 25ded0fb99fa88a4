"use strict";
// Pages work without this. It shows times in the reader's zone, and counts as they change.
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

  if (document.body.dataset.live !== "counts") return;
  const away = document.getElementById("away");
  const told = document.getElementById("told");
  const number = new Intl.NumberFormat("en");
  let before = "";
  const show = (text) => {
    if (away.textContent !== text) away.textContent = text;
    away.hidden = text === "";
  };
  const put = (name, text) => {
    const place = document.querySelector(`[data-count="${name}"]`);
    if (!place || place.textContent === text) return;
    place.textContent = text;
    place.closest(".count").classList.toggle("none", text === "0");
  };
  const base = document.querySelector("header .name").getAttribute("href").replace(/\/$/, "");
  const live = new EventSource(`${base}/live`);
  live.addEventListener("counts", (event) => {
    const { counts, total, exact, rate } = JSON.parse(event.data);
    show("");
    for (const [state, count] of Object.entries(counts)) put(state, number.format(count));
    if (total !== null) put("total", (exact ? "" : "≈ ") + number.format(total));
    if (rate !== null) put("rate", rate.toFixed(1));
    // A screen reader hears only what a person must act on.
    const now = `${counts.PARKED ?? "unknown"} parked, ${counts.LAPSED ?? "unknown"} lapsed, ${counts.REFUSED ?? "unknown"} refused`;
    if (before && now !== before) told.textContent = now;
    before = now;
  });
  live.addEventListener("away", (event) => show(`The ledger is away; these counts are old. ${JSON.parse(event.data).error}`));
  live.addEventListener("error", () => show("The dashboard does not answer; these counts are old. The page tries again."));
  addEventListener("pagehide", () => live.close());
})();
