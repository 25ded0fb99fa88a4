/** A client of `onceward serve`: handlers that take effect once, in TypeScript and JavaScript. It needs Node.js 18, Deno, Bun or a browser. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type Key = string | number | (string | number)[];

export interface Options {
  lease?: number; // seconds that the claim holds without a renewal. It is renewed while the handler runs
  wait?: number; // seconds to wait for the result if another client works on the key
  input?: Json; // what must not change under one key. Only its SHA-256 is kept
  retention?: number | null; // seconds that the result answers duplicates; null is for ever
  maxAttempts?: number; // claims after which the key is parked
  onLapse?: "retry" | "park"; // what becomes of a key whose client has vanished
  worker?: string; // who works, for people who look at the ledger
}

export interface Settings {
  url: string; // where the service is, such as `https://onceward.internal:8767`
  namespace: string; // the namespace of the keys
  token?: string;
  patience?: number; // seconds to repeat a request without an answer. The same request gets the same answer
  timeout?: number; // seconds to wait for one answer
}

/** The service refused a request. `kind` is `busy`, `parked`, `mismatch`, `lost` and so on; the message says what to do next. */
export class OncewardError extends Error {
  override name = "OncewardError";
  constructor(readonly kind: string, message: string, readonly retryAfter?: number) {
    super(message);
  }
}

/** The work is done, and its result could not be recorded. Another client may do the work again. */
export class ResultNotRecorded extends OncewardError {
  constructor(readonly result: Json, cause: OncewardError) {
    super("result-not-recorded", `the work is done, and its result is not recorded: ${cause.message}`);
  }
}

type Body = Record<string, unknown>;
type Answer = { outcome: string; fence: number; attempt: number; lease: number; keys: Record<string, string>; made: boolean; key: string; result: Json };

let gap = Date.now() - performance.now(), slept = 0; // milliseconds. A computer's sleep can stop the one clock, and not the other
const now = (): number => {
  const ahead = -gap + (gap = Date.now() - performance.now());
  return (performance.now() + (slept += ahead > 100 ? ahead : 0)) / 1000;
};
const pause = (seconds: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const plain = (value: unknown): Json => JSON.parse(JSON.stringify(value ?? null) ?? "null") as Json;
const text = (error: unknown): string => {
  try {
    return String(error).slice(0, 1000).replace(/\p{Surrogate}/gu, "\ufffd") || "unknown";
  } catch {
    return "unknown"; // an error without a text
  }
};
const ENDS: Record<string, string> = { claim: "completed", complete: "completed", release: "released", park: "parked" };
/** Whether an answer is one of the service. Anything else, such as a proxy's page, is no permission to work. */
const fits = (action: string, { outcome, lease, made }: Partial<Answer>): boolean =>
  outcome !== undefined && outcome === ENDS[action] ||
  typeof lease === "number" && (action === "claim" ? outcome === "claimed" : action === "step" ? typeof made === "boolean" : action === "extend");
const over = (): OncewardError => new OncewardError("lost", "the claim is over");

export class Onceward {
  constructor(readonly settings: Settings) {}

  /** Do the work once for `key`, or return the recorded result. */
  async run(key: Key, handler: (claim: Claim) => Promise<Json | void> | Json | void, options: Options = {}): Promise<Json> {
    const claim = await this.claim(key, options);
    if (!(claim instanceof Claim)) return claim.result;
    let made: Json | void;
    try {
      if (claim.lost) throw over(); // the answer came late
      made = await handler(claim);
    } catch (error) {
      await claim.release(text(error)).catch(() => undefined); // the caller must see the handler's own error
      throw error;
    }
    return claim.complete(made);
  }

  /** Claim `key`, or return its recorded result. You must end a claim with `complete`, `release` or `park`. */
  async claim(key: Key, options: Options = {}): Promise<Claim | { result: Json }> {
    const { lease = 60, wait = 0, input, retention, maxAttempts, onLapse, worker } = options;
    const id = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    const body = { key, id, lease, input, retention, max_attempts: maxAttempts, on_lapse: onLapse, worker };
    const end = now() + wait;
    for (;;) {
      const left = Math.max(0, end - now());
      try {
        const { answer, sent } = await this.ask("claim", { ...body, wait: Math.min(left, 20) });
        return answer.outcome === "completed" ? { result: answer.result } : new Claim(this, key, id, lease, answer, sent);
      } catch (error) {
        if (!(error instanceof OncewardError) || error.kind !== "busy" || left <= 0) throw error;
        await pause(Math.min(error.retryAfter ?? 1, 0.2, left)); // the service has waited already
      }
    }
  }

  /** Send a request until it is answered. Returns the answer, and when the answered request was sent. */
  async ask(action: string, body: Body, until = now() + (this.settings.patience ?? 30)): Promise<{ answer: Answer; sent: number }> {
    const { url, namespace, token, timeout = 10 } = this.settings;
    const address = `${url.replace(/\/+$/, "")}/v1/${encodeURIComponent(namespace)}/${action}`;
    const headers = { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    const data = JSON.stringify(body), limit = (timeout + Number(body.wait ?? 0)) * 1000;
    for (let delay = 0.05; ; delay = Math.min(2 * delay, 2)) {
      const sent = now();
      let trouble: OncewardError;
      try {
        const response = await fetch(address, { method: "POST", headers, body: data, signal: AbortSignal.timeout(Math.ceil(limit)) });
        if (response.status === 413) throw new OncewardError("too-large", `${address}: a request of ${data.length} characters is too large`); // a proxy can say so
        const answer = (await response.json()) as Answer & { type: string; detail: string; retry_after?: number };
        if (response.ok && !fits(action, answer ?? {})) throw new Error("the answer is not one of onceward serve");
        if (response.ok) return { answer, sent };
        trouble = new OncewardError(answer.type.split(":").pop() ?? "", answer.detail, answer.retry_after);
        if (response.status < 500 && response.status !== 408 && response.status !== 429) throw trouble;
      } catch (error) {
        if (error instanceof OncewardError) throw error;
        trouble = new OncewardError("unreachable", `${address}: ${text(error)}`);
      }
      const wait = (trouble.retryAfter ?? delay) * (0.5 + Math.random() / 2);
      if (now() + wait >= until) throw trouble;
      await pause(wait);
    }
  }
}

/** The right to do the work for one key. It is renewed until you end it. */
export class Claim {
  readonly fence: number; // larger than in every earlier claim on this key: pass it to a downstream that checks it
  readonly attempt: number;
  inDoubt = false; // whether the work, or a step, is done and not recorded. Then the key must stay claimed to the end of the lease
  private until: number;
  private ended = false;
  private running = 0; // steps that are being made
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly stop = new AbortController();
  private readonly names: Body;
  readonly signal: AbortSignal = this.stop.signal; // aborted when the claim is lost: pass it to `fetch`, and stop the work

  constructor(private readonly client: Onceward, key: Key, id: string, private readonly lease: number, won: Answer, sent: number) {
    [this.fence, this.attempt] = [won.fence, won.attempt];
    this.names = { key, id, fence: won.fence };
    this.until = sent + won.lease; // counted from before the request
    this.beat();
  }

  /** Whether the lease is over. Then another client can do the work, so stop. */
  get lost(): boolean {
    return this.signal.aborted || now() >= this.until;
  }

  /** A key for a downstream call, the same on each attempt. */
  key = async (purpose: string): Promise<string> => (await this.ask("extend", { derive: [purpose] })).keys[purpose] as string;

  /** Make a part of the work once, also over several attempts. `make` gets a key for the downstream, the same on each attempt. */
  async step(name: string, make: (key: string) => Promise<Json | void> | Json | void, onLapse: "retry" | "park" = "retry"): Promise<Json> {
    this.running += 1; // also while it is asked for: no key is given back meanwhile
    try {
      const begun = await this.ask("step", { step: name, on_lapse: onLapse });
      if (begun.made) return begun.result;
      if (this.lost || this.ended) throw over();
      return await this.record(await make(begun.key), (body) => this.ask("step", { step: name, ...body }));
    } finally {
      this.running -= 1;
    }
  }

  /** Record the result for good. Returns it as duplicates get it. */
  complete = (result: Json | void): Promise<Json> => this.record(result, (body) => this.end("complete", body));

  /** Record a result; only why there is none, if it cannot be written or is refused for good: the work is done all the same. */
  private async record(made: Json | void, send: (body: Body) => Promise<unknown>): Promise<Json> {
    let result = made as Json, body: Body;
    try {
      body = { result: (result = plain(made)) }; // a replay returns the same
    } catch (error) {
      body = { no_result: text(error) };
    }
    const refused = (error: OncewardError): Promise<unknown> => {
      if (error.kind !== "too-large" && error.kind !== "malformed") throw error;
      return send({ no_result: text(error.message) });
    };
    await send(body).catch(refused).catch((error: OncewardError) => {
      this.inDoubt = true;
      throw new ResultNotRecorded(result, error);
    });
    return result;
  }

  /** Give the key back for a retry, when no step runs any more. After a lease it stays claimed instead, as after `ResultNotRecorded`. */
  release = (error?: string): Promise<void> => this.end("release", { error });
  /** Stop retrying the key until an operator unparks it. */
  park = (reason?: string): Promise<void> => this.end("park", { error: reason });

  private async ask(action: string, body: Body): Promise<Answer> {
    const lease = action === "extend" || action === "step" ? { lease: this.lease } : {};
    try {
      const { answer, sent } = await this.client.ask(action, { ...this.names, ...lease, ...body }, Math.max(this.until, now() + 1));
      if (answer.lease) this.until = Math.max(this.until, sent + answer.lease);
      return answer;
    } catch (error) {
      if ((error as OncewardError).kind === "lost") this.stop.abort(error);
      throw error;
    }
  }

  private async end(action: string, body: Body): Promise<void> {
    try {
      for (const until = now() + this.lease; action === "release" && this.running && !this.lost && now() < until; ) await pause(0.01);
      this.ended ||= action === "release"; // no step begins any more
      if ((!this.inDoubt && !this.running) || action !== "release") await this.ask(action, body); // the claim is renewed until this is answered
    } finally {
      this.ended = true;
      clearTimeout(this.timer);
    }
  }

  private beat(): void {
    if (this.ended) return;
    const left = this.until - now();
    if (left <= 0) this.stop.abort(over());
    if (this.signal.aborted) return;
    this.timer = setTimeout(() => void this.ask("extend", {}).catch(() => undefined).finally(() => this.beat()), Math.max(10, (left / 3) * 1000));
  }
}
