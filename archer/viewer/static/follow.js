// Watches a run that is still training: new steps appear by themselves.

const EVERY = 2000;

export class Follower {
  // `changed(run, timeline)` is called when a run's timeline is another one than before
  constructor(source, runs, changed) {
    Object.assign(this, { source, runs, changed });
    this.timer = 0;
    this.on = false;
  }

  start(timelines) {
    this.known = timelines.map((timeline) => JSON.stringify(timeline));
    this.on = true;
    this.schedule();
  }

  stop() {
    this.on = false;
    clearTimeout(this.timer);
  }

  schedule() {
    clearTimeout(this.timer);
    if (this.on) this.timer = setTimeout(() => this.look(), EVERY);
  }

  async look() {
    for (let run = 0; run < this.runs; run += 1) {
      try {
        const timeline = await this.source.timeline(run);
        const text = JSON.stringify(timeline);
        if (text !== this.known[run]) {
          this.known[run] = text;
          this.changed(run, timeline);
        }
      } catch {
        // the server may be restarting; the next look tells
      }
    }
    this.schedule();
  }
}
