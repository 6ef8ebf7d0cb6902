// Owns the search worker: one question at a time, a time limit, and an end to it when another question comes.

import { MAX_MATCHES } from "./search.js";

const LIMIT = 1500;
const STARTUP = 20000;
const TOO_SLOW = `This expression takes longer than ${LIMIT / 1000} s on this text. Make it simpler, for example without a repetition inside a repetition.`;
const NO_WORKER = "Regular expressions cannot be run safely here, because this page may not start a worker. Plain search works.";

export class RegexRunner {
  // `address()` resolves to the address of the worker's script
  constructor(address) {
    this.address = address;
    this.line = Promise.resolve();
    this.wanted = null;
  }

  // {found: [Int32Array of starts and ends]}, {error: sentence}, or {} when another question came meanwhile.
  find(query, texts) {
    if (this.wanted !== query) {
      this.wanted = query;
      this.drop?.(); // whoever waits for the old question has no use for its answer any more
    }
    const job = this.line.then(() => (this.wanted === query ? this.run(query, texts) : {}));
    this.line = job.catch(() => {});
    return job;
  }

  async run(query, texts) {
    try {
      this.worker ??= await this.start();
    } catch {
      return { error: NO_WORKER };
    }
    if (this.wanted !== query) return {};
    return new Promise((resolve) => {
      const { worker } = this;
      const end = (answer, stop) => {
        clearTimeout(timer);
        this.drop = null;
        if (stop) {
          worker.terminate();
          this.worker = null;
        }
        resolve(answer);
      };
      const timer = setTimeout(() => end({ error: TOO_SLOW }, true), LIMIT);
      this.drop = () => end({}, true);
      worker.onmessage = ({ data }) => end({ found: data }, false);
      worker.onerror = (event) => end({ error: event.message }, true);
      worker.postMessage({ source: query.source, flags: query.flags, texts, most: MAX_MATCHES });
    });
  }

  // The time a worker needs to start is not the expression's.
  async start() {
    const worker = new Worker(await this.address());
    return new Promise((resolve, reject) => {
      const fail = () => {
        clearTimeout(timer);
        worker.terminate();
        reject(new Error("the worker did not start"));
      };
      const timer = setTimeout(fail, STARTUP);
      worker.onerror = (event) => {
        event.preventDefault();
        fail();
      };
      worker.onmessage = () => {
        clearTimeout(timer);
        resolve(worker);
      };
    });
  }
}
