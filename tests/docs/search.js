// Type words into the search of a built site: node search.js SITE WORDS... prints the pages that it finds, a line for each.
// It runs the site's own worker, with the index of the site, outside of a browser.
const fs = require("fs"), path = require("path"), vm = require("vm");

const [site, ...queries] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(folder).find((name) => /^search\..*\.js$/.test(name));
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.js"), "utf8").replace("var __index = ", ""));

let hear, answered;
const scope = { addEventListener: (_, listener) => (hear = listener), postMessage: (answer) => answered(answer), console };
scope.self = scope;
vm.runInContext(fs.readFileSync(path.join(folder, worker), "utf8"), vm.createContext(scope));

const ask = (type, data) => new Promise((resolve) => ((answered = resolve), hear({ data: { type, data } })));

(async () => {
  await ask(0, { config: index.config, docs: index.docs, options: {} });
  for (const words of queries) {
    const { items } = (await ask(2, words)).data;
    console.log([...new Set(items.flat().map((item) => item.location.split("#")[0]))].join(" "));
  }
})();
