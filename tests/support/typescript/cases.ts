/** What tests/integration/service/test_service_clients.py runs: `node cases.js URL NAMESPACE CASE`. Each case prints lines of JSON. */

import { Claim, Onceward, OncewardError, ResultNotRecorded, type Json } from "./onceward.js";

declare const process: { argv: string[]; exit(status: number): never };

const [url, namespace, name] = process.argv.slice(2) as [string, string, string];
const once = new Onceward({ url, namespace, patience: 60 });
const say = (value: unknown): void => console.log(JSON.stringify(value));
const pause = (seconds: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

async function kindOf(work: Promise<unknown>): Promise<string> {
  try {
    await work;
    return "none";
  } catch (error) {
    return error instanceof OncewardError ? error.kind : String(error);
  }
}

const cases: Record<string, () => Promise<void>> = {
  async values() {
    const values: (Json | undefined)[] = [null, 0, "", [], {}, false, 1.5, "\u0000é😀", { a: [null, { $onceward: 1 }] }, undefined];
    for (const [number, value] of values.entries()) {
      let runs = 0;
      const work = (): Promise<Json> => once.run(["value", number], () => ((runs += 1), value) as Json);
      say([await work(), await work(), runs]);
    }
  },

  async twice() {
    let runs = 0;
    const handler = async (): Promise<Json> => {
      runs += 1;
      await pause(0.5);
      return { receipt: runs };
    };
    const both = await Promise.all([once.run("k", handler, { wait: 60 }), once.run("k", handler, { wait: 60 })]);
    say([...both, runs]);
  },

  async effects() {
    const effects: string[] = [];
    const handler = async (claim: Claim): Promise<Json> => {
      effects.push(await claim.key("refund"));
      const mail = await claim.step("mail", (key) => {
        effects.push(key);
        return { sent: true };
      });
      return { mail, fence: claim.fence, attempt: claim.attempt };
    };
    say([await once.run("k", handler), await once.run("k", handler), effects]);
  },

  async retry() {
    const made: string[] = [];
    const attempt = (fails: boolean): Promise<Json> =>
      once.run("k", async (claim) => {
        const paid = await claim.step("pay", (key) => (made.push(key), { paid: 7 }));
        if (fails) throw new TypeError("the mail server is away");
        return { paid, attempt: claim.attempt };
      });
    say([await kindOf(attempt(true)), await attempt(false), made.length]);
  },

  async beside() {
    let made = 0;
    const slow = async (): Promise<void> => {
      made += 1;
      await pause(0.5);
    };
    const both = (fails: boolean): Promise<Json> =>
      once.run("k", async (claim) => {
        const step = claim.step("pay", slow);
        await pause(0.2);
        if (fails) throw new TypeError("the mail server is away");
        await step;
        return made;
      });
    say([await kindOf(both(true)), await both(false)]);
  },

  async long() {
    const began = performance.now();
    const result = await once.run(
      "k",
      async (claim) => {
        say("began");
        while (performance.now() - began < 10_000) await pause(0.1);
        return { lost: claim.lost };
      },
      { lease: 9 },
    );
    say(result);
  },

  async stopped() {
    const work = once.run(
      "k",
      async (claim) => {
        const gone = new Promise<string>((resolve) => claim.signal.addEventListener("abort", () => resolve("aborted")));
        say("began");
        say([await gone, claim.lost]);
        return "zombie";
      },
      { lease: 3 },
    );
    say(await kindOf(work));
    say(await once.run("k", () => "second", { wait: 60 }));
  },

  async asleep() {
    const held = (await once.claim("k", { lease: 600 })) as Claim;
    const before = held.lost;
    const wall = Date.now;
    Date.now = () => wall() + 3_600_000; // and performance.now() stood still meanwhile
    say([before, held.lost]);
    await held.release();
  },

  async waits() {
    say("began");
    say(await once.run("k", () => "ran", { wait: 60 }));
  },

  async restart() {
    const result = await once.run("k", async (claim) => {
      say("began");
      await pause(2);
      await claim.step("s", () => 1);
      return "done";
    });
    say(result);
  },

  async refusals() {
    const told: string[] = [];
    await once.run("input", () => 1, { input: { a: 1 } });
    told.push(await kindOf(once.run("input", () => 1, { input: { a: 2 } })));
    await kindOf(once.run("parks", () => Promise.reject(new Error("no")), { maxAttempts: 1 }));
    told.push(await kindOf(once.run("parks", () => 1, { maxAttempts: 1 })));
    const held = (await once.claim("held")) as Claim;
    told.push(await kindOf(once.run("held", () => 1)));
    await held.park("by hand");
    told.push(await kindOf(once.run("held", () => 1)));
    told.push(await kindOf(once.run("", () => 1)));
    await once.run("large", () => "x".repeat(2 * 1024 * 1024));
    told.push(await kindOf(once.run("large", () => 1)));
    const late = (await once.claim("late", { lease: 0.5 })) as Claim;
    late.signal.addEventListener("abort", () => undefined);
    told.push(String((await kindOf(late.complete(1))) === "none"));
    say(told);
  },

  async unwritable() {
    let made = 0;
    const told: string[] = [];
    for (const [number, value] of [7n, "caf\ud83d", "x".repeat(1_100_000)].entries()) {
      const make = (): Json => ((made += 1), value as Json);
      const fail = (claim: Claim): Promise<Json> => claim.step("s", make).then(() => Promise.reject("away"));
      for (const handler of [make, make]) told.push(await kindOf(once.run(["result", number], handler, { wait: 5 })));
      for (const handler of [fail, fail]) told.push(await kindOf(once.run(["step", number], handler)));
    }
    await once.run("odd", () => Promise.reject(Object.create(null))).catch(() => undefined); // String() refuses this one
    say([...told, made, await once.run("odd", () => "again")]);
  },

  async late() {
    const real = fetch;
    let made = 0;
    const make = (): Json => (made += 1);
    const delay = (action: string): void => {
      globalThis.fetch = async (where, how) => {
        const answer = await real(where, how);
        if (String(where).endsWith(action)) await pause(1.2);
        return answer;
      };
    };
    const beside = (claim: Claim): Promise<Json> => Promise.all([claim.step("s", make), Promise.reject("away")]);
    delay("step"); // the handler fails while its step begins
    const told = [await kindOf(once.run("beside", beside)), await kindOf(once.run("beside", beside)), made];
    delay("claim"); // for longer than the lease
    told.push(await kindOf(once.run("claim", make, { lease: 1 })), made);
    globalThis.fetch = real;
    const late = (claim: Claim): Promise<Json> => (delay(""), claim.step("s", make));
    told.push(await kindOf(once.run("step", late, { lease: 1 })), made);
    globalThis.fetch = async (where, how) => (String(how?.body).length > 999 ? new Response("<p>", { status: 413 }) : real(where, how));
    told.push(await kindOf(once.run("proxy", () => "x".repeat(999), { lease: 1 })));
    globalThis.fetch = async () => new Response('{"outcome":"claimed"}'); // not the service's
    told.push(await kindOf(new Onceward({ url, namespace, patience: 0 }).run("other", make)), made);
    say(told);
  },

  async unrecorded() {
    const hasty = new Onceward({ url, namespace, patience: 1, timeout: 1 });
    const claim = (await hasty.claim("k", { lease: 3 })) as Claim;
    say("began");
    while (await fetch(`${url}/healthz`).then(() => true, () => false)) await pause(0.05); // until it is killed
    try {
      await claim.complete({ receipt: 7 });
    } catch (error) {
      say([error instanceof ResultNotRecorded, (error as ResultNotRecorded).result]);
      await claim.release(); // as in a handler of all errors: the work is done, so it must not be done again at once
      say("kept");
    }
  },
};

await (cases[name] ?? (() => Promise.reject(new Error(`no case ${name}`))))();
