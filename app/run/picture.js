// Plays a picture (picture.py) on a canvas: sources, workers, sink partitions, two readers.
//
// Everything drawn at a moment follows from the data and that moment alone, so a picture can be
// played, stepped and scrubbed both ways. Names come from topics: they are drawn, or set as text,
// and never become markup.

const [LANE, WORKER, FIRST, , RECORDS, BEGINS, WRITTEN, ENDED, DELIVERED, OUTCOME] =
  Array(10).keys();
const [REPEATED, FIRST_COPY, CAUSE] = [11, 12, 13];
const [REPLAY, PICTURE, CUE] = [0, 1, 2]; // columns of the pace
const FLIGHT_MS = 320; // of a record, in ms of the picture
const APART_MS = 30; // between the dots of one box
const DOTS = 6; // of one box, at most
const DEPARTS_MS = FLIGHT_MS + DOTS * APART_MS; // before a box begins
const FALL_MS = 420;
const GROW_MS = 150;
const FLASH_MS = 380;
const STRUCK_MS = 1200;
const LIVE_DELAY_MS = 1500; // behind the newest data, so that playing never runs dry
const LIVE_JUMP_MS = 8000;
const QUIET_MS = 2500; // without news a live picture is replayed meanwhile
const LASTING_MS = 4000; // of the sentence of a moment in a live picture
const CALM_MS = 1200; // of any other sentence there
const STEP_MS = 900; // between the events of a picture that does not move
const STILL_MS = 5000; // between its moments
const WORKER_HALF = 21; // of its height
const DOTS_MAX = 400;
const LISTED_MAX = 300;
const COMPACT_PX = 640;
const NARROW_PX = 420;
const STORY = "story"; // the speed of a replay that stops at each moment
const SPEEDS = [0.125, 0.25, 0.5, 1, 2, 4, 8];
const FONT = "system-ui, sans-serif";

const views = new WeakMap();
/** The pictures of this page that are replayed, the first one now. */
const stage = (document.picturesInReplay ??= []);

export default function ({ data, parentElement, setTriggerValue }) {
  let view = views.get(parentElement);
  if (view === undefined) {
    view = new View(parentElement);
    views.set(parentElement, view);
  }
  view.ask = (action) => setTriggerValue("action", action);
  view.show(data);
  return () => {
    view.close();
    views.delete(parentElement);
  };
}

/** The value of a figure at a moment. */
function value(steps, at) {
  let low = 0;
  let high = steps.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (steps[middle][0] <= at) low = middle;
    else high = middle - 1;
  }
  return steps[low][1];
}

/** Maps a number between two rising columns of rows. */
function mapped(rows, from, to, at) {
  let n = 0;
  while (n < rows.length - 2 && rows[n + 1][from] <= at) n += 1;
  const a = rows[n];
  const b = rows[Math.min(n + 1, rows.length - 1)];
  const share = b[from] === a[from] ? 0 : (at - a[from]) / (b[from] - a[from]);
  return a[to] + clamp(share) * (b[to] - a[to]);
}

/** The replay's time when it first reaches a moment of the picture. */
function reached(pace, at) {
  const n = pace.findIndex((row) => row[PICTURE] >= at);
  if (n < 1) return pace.at(n)[REPLAY]; // before its beginning, or after its end
  const [a, b] = [pace[n - 1], pace[n]];
  return a[REPLAY] + ((at - a[PICTURE]) / (b[PICTURE] - a[PICTURE])) * (b[REPLAY] - a[REPLAY]);
}

const clamp = (share) => Math.min(1, Math.max(0, share));
const number = (count) => count.toLocaleString("en-US");

class View {
  constructor(root) {
    this.root = root;
    const find = (selector) => root.querySelector(selector);
    this.figure = find("figure");
    this.canvas = find("canvas");
    this.context = this.canvas.getContext("2d");
    this.buttons = Object.fromEntries(
      [...root.querySelectorAll("button")].map((button) => [button.dataset.do, button]),
    );
    this.range = find("input");
    this.speeds = find("select");
    this.time = find(".time");
    this.says = find(".says");
    this.mode = find(".mode");
    this.actions = find(".actions");
    this.summary = find(".summary");
    this.list = find("ol");
    this.data = null;
    this.at = 0;
    this.playing = false;
    this.following = false;
    this.telling = false; // the story's sentences, and no other events
    this.replayed = 0; // up to when, in ms of the run
    this.lanes = [];
    this.scale = null;
    this.frame = 0;
    this.visible = true;
    this.still = window.matchMedia("(prefers-reduced-motion: reduce)");
    this.end = new AbortController();
    this.listen();
  }

  listen() {
    const on = (target, what, act) =>
      target.addEventListener(what, act, { signal: this.end.signal });
    on(this.buttons.play, "click", () => this.toggle());
    on(this.buttons.back, "click", () => this.step(-1));
    on(this.buttons.on, "click", () => this.step(1));
    on(this.buttons.moment, "click", () => this.nextMoment());
    on(this.buttons.live, "click", () => this.follow());
    on(this.buttons.whole, "click", () => this.present());
    on(document, "keydown", (event) => this.pressedKey(event));
    on(document, "fullscreenchange", () => {
      const whole = this.root.fullscreenElement === this.figure;
      this.buttons.whole.textContent = whole ? "Exit full screen" : "Full screen";
      // The space bar would press the button that has the focus, which leaves at once.
      if (whole) this.buttons.play.focus();
      this.wake(true);
    });
    on(this.range, "input", () => this.stop(Number(this.range.value)));
    on(this.speeds, "change", () => this.paced());
    on(find(this.root, "details"), "toggle", () => this.tell());
    this.resized = new ResizeObserver(() => this.wake(true));
    this.resized.observe(this.canvas);
    this.seen = new IntersectionObserver(([entry]) => {
      this.visible = entry.isIntersecting;
      this.wake(true);
    });
    this.seen.observe(this.canvas);
  }

  close() {
    this.leave();
    this.end.abort();
    this.resized.disconnect();
    this.seen.disconnect();
    cancelAnimationFrame(this.frame);
  }

  show(data) {
    const before = this.data;
    const now = before && mapped(before.clock, 0, 1, this.at);
    const into = before && this.telling ? this.replay - reached(before.pace, this.at) : 0;
    this.data = data;
    this.length = data.clock[data.clock.length - 1][0];
    this.lanes = data.lanes.map((lane, n) => ({
      ...lane,
      boxes: data.boxes.filter((box) => box[LANE] === n),
      scroll: 0,
      gate: null,
      ...(before && this.lanes[n] && { scroll: this.lanes[n].scroll, gate: this.lanes[n].gate }),
    }));
    this.workers = [...data.workers];
    if (data.boxes.some((box) => box[WORKER] < 0)) this.workers.push(null);
    this.colours();
    // When the run was created, by the clock of this page.
    this.createdAt ??= performance.now() - data.clock.at(-1)[1];
    if (before === null) this.start();
    else this.moved(now, into);
    // Who acts wants to see what comes of it.
    if (before && data.live && data.asked_at !== before.asked_at) this.follow();
    if (this.following && this.still.matches) this.at = this.length;
    const news = data.events.length + data.boxes.length;
    if (news !== this.news) this.newsAt = performance.now();
    this.news = news;
    const keys = [...data.events.filter((event) => event.key), ...data.cues];
    this.keys = keys.sort((a, b) => a.at - b.at); // a moment after the event that it is made of
    if (!data.live && this.following) {
      this.following = false;
      // What happened live in a blink is shown again, at the pace of the story.
      if (this.still.matches) {
        this.stop(this.length);
        this.speeds.value = STORY;
      } else this.direct();
    }
    find(this.root, ".twice").hidden = !data.boxes.some((box) => box[REPEATED] > 0);
    this.range.max = this.length;
    this.buttons.live.hidden = !data.live;
    this.buttons.moment.hidden = data.cues.length === 0;
    this.root.querySelector(".left-out").textContent = data.left_out.length
      ? `Not drawn: ${data.left_out.join(", ")}.`
      : "";
    this.summary.textContent = data.summary;
    this.canvas.setAttribute("aria-label", `${data.title}. ${data.summary}`);
    find(this.root, ".heading").textContent = data.heading || data.title;
    find(this.root, ".verdict").textContent = data.verdict;
    this.offer(data.actions);
    this.tell();
    this.wake(before === null);
  }

  /** Stays at the same moment of the run (`now`, in ms of it) when there is more of it. `into`: how
   * long a replay has stopped there. */
  moved(now, into) {
    this.at = mapped(this.data.clock, 1, 0, now);
    if (!this.telling) return;
    const cue = this.data.cues.find(({ at }) => Math.abs(at - this.at) <= 2);
    if (cue) this.at = cue.at;
    this.replay = reached(this.data.pace, this.at) + into;
  }

  start() {
    this.speeds.replaceChildren();
    for (const each of [STORY, ...SPEEDS]) {
      const option = document.createElement("option");
      option.value = each;
      option.textContent = each === STORY ? "Story pace" : `${each}×`;
      this.speeds.append(option);
    }
    this.speeds.value = this.data.live ? 1 : STORY;
    this.following = this.data.live;
    this.playing = this.data.live;
    this.at = this.length;
    if (this.data.live) this.at = Math.max(0, this.length - LIVE_DELAY_MS);
    else if (this.data.plays && !this.still.matches) this.direct();
  }

  /** Plays what was not replayed yet at the pace of the story. */
  direct() {
    this.following = false;
    // Of two pictures side by side, one is told after the other.
    if (!stage.includes(this)) stage.push(this);
    if (stage[0] !== this) {
      this.playing = false;
      return;
    }
    this.speeds.value = STORY;
    this.at = this.replayed > 0 ? mapped(this.data.clock, 1, 0, this.replayed) : 0;
    this.playing = true;
    this.telling = false;
    this.paced();
  }

  /** Ends its replay, or its waiting for one. The next picture's begins. */
  leave() {
    const at = stage.indexOf(this);
    if (at < 0) return;
    stage.splice(at, 1);
    if (at === 0 && stage.length > 0) stage[0].direct();
  }

  /** Goes on at the chosen speed. */
  paced() {
    this.following = false;
    const tells = this.speeds.value === STORY;
    if (tells && !this.telling) this.replay = mapped(this.data.pace, PICTURE, REPLAY, this.at);
    this.telling = tells;
    this.wake();
  }

  toggle() {
    if (this.playing) {
      this.playing = this.following = false;
      return this.wake(true);
    }
    if (stage[0] !== this) this.leave();
    if (this.at >= this.length) {
      this.at = 0;
      this.telling = false;
    }
    this.playing = true;
    this.since = 0;
    return this.paced();
  }

  stop(at) {
    this.leave();
    this.playing = false;
    this.following = false;
    this.telling = false;
    this.at = at;
    this.wake(true);
  }

  follow() {
    this.leave();
    this.playing = true;
    this.following = true;
    this.telling = false;
    this.speeds.value = 1;
    this.at = Math.max(0, this.length - LIVE_DELAY_MS);
    this.wake(true);
  }

  /** Goes to the next moment of the story, after the last one to the first. */
  nextMoment() {
    const { cues, pace } = this.data;
    const from = this.telling ? value(pace.map((row) => [row[REPLAY], row[CUE]]), this.replay) : -1;
    const later = cues.findIndex((cue, n) => n > from && (this.telling || cue.at >= this.at));
    const next = later < 0 ? 0 : later;
    this.stop(cues[next].at);
    this.speeds.value = STORY;
    this.telling = true;
    this.replay = pace.find((row) => row[CUE] === next)[REPLAY];
  }

  /** Offers what can be done to the run, for people who see nothing but the picture. */
  offer(actions) {
    const labels = actions.join("\n");
    if (this.labels === labels) return;
    this.labels = labels;
    find(this.root, ".keys .acts").hidden = actions.length === 0;
    this.actions.replaceChildren(
      ...actions.map((label, n) => {
        const button = document.createElement("button");
        const key = document.createElement("kbd");
        button.type = "button";
        key.textContent = n + 1;
        key.setAttribute("aria-hidden", "true");
        button.append(key, ` ${label}`);
        button.addEventListener("click", () => {
          this.pressed = { label, at: performance.now() };
          this.ask(label);
          this.wake();
        });
        return button;
      }),
    );
  }

  step(way) {
    this.stop(this.next(way) ?? (way > 0 ? this.length : 0));
  }

  /** The moment of the next event in a direction. */
  next(way) {
    const moments = this.data.events.map((event) => event.at);
    return way > 0
      ? moments.find((at) => at > this.at)
      : moments.reverse().find((at) => at < this.at);
  }

  /** Draws soon. With `jump`, nothing glides to its place. */
  wake(jump = false) {
    this.jump ||= jump;
    if (this.data === null || this.asked) return;
    this.asked = true;
    this.frame = requestAnimationFrame((now) => {
      this.asked = false;
      this.tick(now);
    });
  }

  tick(now) {
    const passed = Math.min(100, now - (this.last ?? now));
    this.last = now;
    if (this.playing) this.advance(passed);
    if (!this.visible) {
      // Time goes on out of sight, where nothing is drawn.
      if (this.playing) this.wake();
      return;
    }
    const moves = this.draw(this.jump || this.still.matches ? Infinity : passed);
    this.jump = false;
    this.controls();
    if (this.playing || moves) this.wake();
    else this.last = undefined;
  }

  advance(passed) {
    if (this.still.matches && !this.following) {
      // Without motion: from moment to moment of a story, or from event to event.
      const steps = this.telling ? 1 : Math.min(2, Number(this.speeds.value) * 4);
      this.since = (this.since ?? 0) + passed * steps;
      const hold = this.telling ? STILL_MS : STEP_MS;
      if (this.since < hold) return;
      this.since = 0;
      const cue = this.telling && this.data.cues.find(({ at }) => at > this.at);
      this.at = (this.telling ? cue?.at : this.next(1)) ?? this.length;
      if (this.telling) this.replay = reached(this.data.pace, this.at);
    } else if (this.following) {
      this.followOn(passed);
    } else if (this.telling) {
      const { pace } = this.data;
      this.replay += passed;
      this.at = mapped(pace, REPLAY, PICTURE, this.replay);
      if (this.replay < pace[pace.length - 1][REPLAY]) return;
    } else {
      this.at += passed * Number(this.speeds.value);
    }
    if (this.at < this.length || this.following) return;
    this.at = this.length;
    if (this.telling) this.replayed = mapped(this.data.clock, 0, 1, this.length);
    // A run that goes on has more to show.
    if (this.data.live) this.follow();
    else this.playing = false;
    this.leave();
  }

  /** Follows a live run at a distance, up to its newest data if nothing more comes. */
  followOn(passed) {
    const quiet = performance.now() - this.newsAt > QUIET_MS;
    const left = this.length - (quiet ? 0 : LIVE_DELAY_MS) - this.at;
    if (left > LIVE_JUMP_MS) this.at += left - LIVE_DELAY_MS;
    else if (left > 0) this.at += Math.min(left, passed * (1 + left / LIVE_DELAY_MS));
    const shown = mapped(this.data.clock, 1, 0, this.replayed);
    const untold = this.data.cues.filter(({ at }) => at > shown).length;
    if (quiet && left <= 0 && untold > 1 && !this.data.interactive && !this.still.matches) {
      this.direct();
    }
  }

  /** The number of the moment whose sentence is told; -1: none. */
  cue() {
    if (!this.telling) return -1;
    const rows = this.data.pace;
    let n = rows.length - 1;
    while (n > 0 && rows[n][REPLAY] > this.replay) n -= 1;
    return rows[n][CUE];
  }

  sentence() {
    const { events, cues, live } = this.data;
    const last = (rows) => {
      let n = rows.length - 1;
      while (n >= 0 && rows[n].at > this.at) n -= 1;
      return n < 0 ? undefined : rows[n];
    };
    if (this.pressed && performance.now() - this.pressed.at < LASTING_MS) {
      return `${this.pressed.label}: asked. It takes effect in a moment.`;
    }
    if (stage.indexOf(this) > 0) return "Its replay comes next.";
    const told = this.cue();
    if (told >= 0) return cues[told].says;
    const event = last(events);
    if (this.telling) return "From the beginning, slowly:";
    if (event === undefined) {
      return live ? this.starting() : "Nothing has happened yet.";
    }
    if (!this.following) return event.says;
    // Live, everything comes at once: what matters stays, and the rest does not flicker.
    const key = last(this.keys);
    if (key && this.at - key.at < LASTING_MS) return key.says;
    const now = performance.now();
    if (now - (this.calm ?? 0) < CALM_MS) return this.says.textContent;
    this.calm = now;
    return event.says;
  }

  /** What is said before the first record of a live run. */
  starting() {
    const seconds = Math.floor((performance.now() - this.createdAt) / 1000);
    const usual = "usually a few seconds, about half a minute for the first run after a start";
    return `Spark is starting the workers: ${number(seconds)} s; ${usual}.`;
  }

  controls() {
    const word = this.playing ? "Pause" : "Play";
    if (this.buttons.play.textContent !== word) this.buttons.play.textContent = word;
    this.buttons.live.setAttribute("aria-pressed", String(this.following));
    const mode = this.playing && this.telling ? "Slow replay" : "";
    if (this.mode.textContent !== mode) this.mode.textContent = mode;
    this.range.value = this.at;
    const ms = mapped(this.data.clock, 0, 1, this.at);
    const time = `${(ms / 1000).toFixed(2)} s`;
    this.time.textContent = time;
    this.range.setAttribute("aria-valuetext", time);
    // While it plays, a screen reader is told of the story's moments, and not of every event.
    const quiet = this.playing && !this.telling;
    this.says.setAttribute("aria-live", quiet ? "off" : "polite");
    const said = this.sentence();
    if (this.says.textContent !== said) this.says.textContent = said;
  }

  /** Lists the newest events, if somebody looks. */
  tell() {
    if (!find(this.root, "details").open || this.data === null) return;
    this.list.replaceChildren(
      ...this.data.events.slice(-LISTED_MAX).map((event) => {
        const item = document.createElement("li");
        const ms = mapped(this.data.clock, 0, 1, event.at);
        item.textContent = `${(ms / 1000).toFixed(2)} s: ${event.says}`;
        return item;
      }),
    );
  }

  colours() {
    const style = getComputedStyle(this.root.host ?? this.root);
    const of = (name, otherwise) => style.getPropertyValue(`--st-${name}`).trim() || otherwise;
    this.theme = {
      text: of("text-color", "#111"),
      faint: of("gray-text-color", "#666"),
      line: of("border-color", "#ccc"),
      track: of("secondary-background-color", "#f4f4f4"),
      page: of("background-color", "#fff"),
      strike: "#b3261e",
      ice: "#a9d6f5",
      primary: of("primary-color", "#06c"),
      font: of("font", FONT),
      ...this.data.colours,
    };
    this.stripes = stripes(this.context, this.theme.PENDING, this.theme.page);
  }

  measure() {
    const { data } = this;
    const row = data.small ? 42 : 52; // with room for a word below a box
    const rows = Math.max(this.workers.length, this.lanes.length, 1);
    const height = 24 + rows * row + 12 + 2 * 36;
    const zoom = this.zoom(height);
    const width = (this.canvas.clientWidth || 600) / zoom;
    const compact = width < COMPACT_PX || data.small;
    const ratio = (window.devicePixelRatio || 1) * zoom;
    if (this.canvas.width !== Math.round(width * ratio) || this.tall !== height * zoom) {
      this.tall = height * zoom;
      this.canvas.style.height = `${height * zoom}px`;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.jump = true;
    }
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const narrow = width < NARROW_PX;
    const worker = compact ? (narrow ? 74 : 96) : 124;
    const source = compact ? 0 : 118;
    const gap = compact ? (narrow ? 22 : 44) : 84;
    const workerX = source + (compact ? 0 : 40);
    const laneX = workerX + worker + gap + 26;
    this.place = {
      ...{ width, height, compact, row, rows, worker, source, workerX, laneX },
      laneW: Math.max(60, width - laneX - 2),
      top: 24,
      readers: 24 + rows * row + 12,
    };
  }

  /** How much larger a picture is on a whole screen, for people at the back of a room. */
  zoom(height) {
    if (this.root.fullscreenElement !== this.figure) return 1;
    return Math.max(1, Math.min(2.4, (window.innerHeight * 0.66) / height, window.innerWidth / 800));
  }

  present() {
    if (this.root.fullscreenElement) document.exitFullscreen();
    else this.figure.requestFullscreen();
  }

  /** The keys of a presenter, while the picture fills the screen. Esc is the browser's. */
  pressedKey(event) {
    if (this.root.fullscreenElement !== this.figure) return;
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const aim = event.composedPath()[0];
    const takes = (selector) => aim instanceof Element && aim.matches(selector);
    if (takes("select, input")) return; // which have keys of their own
    const number = Number(event.key);
    const act = {
      " ": takes("button, summary") ? undefined : () => this.toggle(),
      ArrowLeft: () => this.step(-1),
      ArrowRight: () => this.step(1),
      n: this.data.cues.length > 0 ? () => this.nextMoment() : undefined,
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    const press = number > 0 ? this.actions.children[number - 1] : undefined;
    if (act === undefined && press === undefined) return;
    event.preventDefault();
    if (act) act();
    else press.click();
  }

  rowY(n, of) {
    const { top, rows, row } = this.place;
    return top + ((n + 0.5) * rows * row) / Math.max(1, of);
  }

  /** Draws the moment. Returns whether something still glides. */
  draw(passed) {
    this.measure();
    const glide = this.jump ? Infinity : passed;
    const { width, height } = this.place;
    const draw = this.context;
    draw.clearRect(0, 0, width, height);
    draw.textBaseline = "middle";
    const moves = this.arrange(glide);
    this.headings();
    this.lanes.forEach((lane, n) => this.lane(lane, n));
    this.workers.forEach((worker, n) => this.worker(worker, n));
    if (this.frozen()) this.ice();
    if (!this.still.matches) this.flights();
    this.repeats();
    this.lanes.forEach((lane, n) => this.name(lane, n));
    this.spotlight();
    this.readers();
    return moves;
  }

  /** Gives every box its place. Lanes shrink to fit, then scroll. */
  arrange(passed) {
    const { laneW, compact } = this.place;
    const share = passed === Infinity ? 1 : 1 - Math.exp(-passed / 90);
    let longest = 1;
    for (const lane of this.lanes) {
      lane.shown = [];
      let reach = 0;
      for (const box of lane.boxes) {
        if (box[BEGINS] > this.at) break;
        // A box is whole when its records count.
        const whole = Math.max(GROW_MS, box[WRITTEN] - box[BEGINS]);
        const left = box[WRITTEN] - this.at;
        const grown = left <= 0 ? 1 : clamp(Math.max(0.1, 1 - left / whole));
        const wide = Math.min(60, 9 + 4.6 * Math.log2(1 + box[RECORDS])) * grown;
        lane.shown.push({ box, from: reach, wide });
        reach += wide + 3;
      }
      lane.reach = reach;
      longest = Math.max(longest, reach);
    }
    const wanted = Math.max(compact ? 0.22 : 0.34, Math.min(1, (laneW - 14) / longest));
    const glide = (from, to, near) =>
      from === null || Math.abs(to - from) < near ? to : from + (to - from) * share;
    this.scale = glide(this.scale, wanted, 0.002);
    let moves = this.scale !== wanted;
    for (const lane of this.lanes) {
      const scroll = Math.max(0, lane.reach * this.scale - (laneW - 14));
      lane.scroll = glide(lane.scroll, scroll, 0.3);
      const lso = value(lane.lso, this.at);
      const behind = lane.shown.find((one) => one.box[FIRST] >= lso);
      const gate = (behind ? behind.from : lane.reach) * this.scale - 1.5 - lane.scroll;
      lane.gate = glide(lane.gate, gate, 0.3);
      moves ||= lane.scroll !== scroll || lane.gate !== gate;
    }
    return moves;
  }

  headings() {
    const { workerX, laneX, compact } = this.place;
    this.text("Sink partitions", laneX - 24, 10, { faint: true });
    this.text("Workers", workerX, 10, { faint: true });
    if (!compact) this.text("Source", 0, 10, { faint: true });
  }

  /** Whether the workers are cut off from the brokers. */
  frozen() {
    return this.data.frozen.some(([since, until]) => this.at >= since && this.at < until);
  }

  /** A wall between workers and sink. */
  ice() {
    const { workerX, worker, laneX, rows, row, top } = this.place;
    const draw = this.context;
    const left = workerX + worker + 3;
    const wide = laneX - 30 - left;
    draw.fillStyle = this.theme.ice;
    draw.fillRect(left, top, wide, rows * row);
    draw.save();
    draw.translate(left + wide / 2, top + (rows * row) / 2);
    draw.rotate(-Math.PI / 2);
    this.text("❄ frozen", 0, 0, { bold: true, colour: "#111", align: "center" });
    draw.restore();
  }

  /** Before the records that fly past it. */
  name(lane, n) {
    const { laneX } = this.place;
    const y = this.rowY(n, this.lanes.length);
    this.context.fillStyle = this.theme.page;
    this.context.fillRect(laneX - 28, y - 8, 24, 16);
    this.text(lane.name, laneX - 26, y, { bold: true });
  }

  lane(lane, n) {
    const { laneX, laneW, row } = this.place;
    const draw = this.context;
    const y = this.rowY(n, this.lanes.length);
    const half = Math.min(15, row / 2 - 4);
    draw.fillStyle = this.theme.track;
    draw.fillRect(laneX, y - half - 3, laneW, 2 * half + 6);
    draw.save();
    draw.beginPath();
    draw.rect(laneX, y - half - 8, laneW, 2 * half + 24);
    draw.clip();
    this.free = laneX;
    for (const one of lane.shown) {
      one.x = laneX + one.from * this.scale - lane.scroll;
      one.y = y;
      one.px = Math.max(3, one.wide * this.scale);
      if (one.x + one.px >= laneX) this.box(one, y, half);
    }
    draw.restore();
    this.gate(lane, y, half);
  }

  state(box) {
    if (box[ENDED] < 0 || this.at < box[ENDED]) return "open";
    if (box[OUTCOME] !== "COMMITTED" && box[OUTCOME] !== "PLAIN") return "aborted";
    return box[DELIVERED] >= 0 && this.at >= box[DELIVERED] ? "committed" : "waiting";
  }

  box({ box, x, px }, y, half) {
    const draw = this.context;
    const { theme } = this;
    const state = this.state(box);
    const since = (this.at - box[ENDED]) / FLASH_MS;
    const flash =
      box[ENDED] >= 0 && since >= 0 && since < 1 && !this.still.matches ? 1 - since : 0;
    const tall = half + 4 * flash;
    const fill = {
      open: this.stripes,
      committed: theme.COMMITTED,
      waiting: theme.page,
      aborted: theme.MARKER,
    }[state];
    draw.fillStyle = fill;
    draw.fillRect(x, y - tall, px, 2 * tall);
    draw.lineWidth = state === "waiting" || state === "aborted" ? 2 : 1;
    draw.strokeStyle = {
      open: theme.PENDING,
      committed: theme.COMMITTED,
      waiting: theme.COMMITTED,
      aborted: theme.ABORTED,
    }[state];
    draw.strokeRect(x + 0.5, y - tall + 0.5, Math.max(1, px - 1), 2 * tall - 1);
    if (box[REPEATED] > 0 && state === "committed") twice(draw, x, y - tall, px, theme);
    if (state === "aborted") cross(draw, x + px / 2, y, Math.min(6, px / 2 - 1));
    if (state === "aborted") this.cause(box, x + px / 2, y + half + 8);
    if (flash > 0) {
      draw.strokeStyle = theme.text;
      draw.globalAlpha = flash;
      draw.strokeRect(x - 1.5, y - tall - 1.5, px + 3, 2 * tall + 3);
      draw.globalAlpha = 1;
    }
    const label = number(box[RECORDS]);
    if (state !== "aborted" && px > 6.5 * label.length + 5) {
      const colour = { open: "#111", committed: "#fff", waiting: theme.text }[state];
      if (state === "open") {
        draw.fillStyle = theme.PENDING;
        draw.fillRect(x + px / 2 - 3.3 * label.length - 2, y - 7, 6.6 * label.length + 4, 14);
      }
      this.text(label, x + px / 2, y + 0.5, { size: 11, colour, align: "center" });
    }
  }

  /** Why a box has its cross, where there is room for the word. */
  cause(box, middle, y) {
    this.context.font = `600 10.5px ${this.theme.font}`;
    const wide = this.context.measureText(box[CAUSE]).width;
    const left = middle - wide / 2;
    if (left < this.free) return;
    this.free = left + wide + 5;
    this.text(box[CAUSE], middle, y, { size: 10.5, bold: true, align: "center" });
  }

  /** Lines from repeats to the boxes with their first copies. */
  repeats() {
    const { laneX, laneW } = this.place;
    const draw = this.context;
    const shown = new Map();
    for (const lane of this.lanes) for (const one of lane.shown) shown.set(one.box, one);
    const top = ({ x, px, y }) => [Math.max(laneX, x + px / 2), y - 15];
    draw.strokeStyle = this.theme.strike;
    draw.lineWidth = 1.6;
    for (const [box, one] of shown) {
      const first = box[FIRST_COPY] < 0 ? undefined : shown.get(this.data.boxes[box[FIRST_COPY]]);
      if (first === undefined || this.at < box[WRITTEN] || one.x === undefined) continue;
      const [[x, y], [x2, y2]] = [top(one), top(first)];
      if (x > laneX + laneW) continue;
      draw.beginPath();
      draw.moveTo(x, y);
      draw.quadraticCurveTo((x + x2) / 2, Math.min(y, y2) - 13, x2, y2);
      draw.stroke();
      draw.beginPath();
      draw.arc(x2, y2, 3, 0, 2 * Math.PI);
      draw.fillStyle = this.theme.strike;
      draw.fill();
    }
  }

  /** A ring around what the sentence is about. */
  spotlight() {
    const cue = this.data.cues[this.cue()];
    if (cue === undefined) return;
    const draw = this.context;
    draw.strokeStyle = this.theme.primary;
    draw.lineWidth = 3;
    draw.beginPath();
    const { workerX, worker, row, laneX } = this.place;
    const box = this.data.boxes[cue.box];
    const one = box && this.lanes[box[LANE]].shown.find((each) => each.box === box);
    if (one && one.x + one.px > laneX) {
      const tall = this.state(box) === "aborted" ? 52 : 42; // with the word below it
      draw.roundRect(one.x - 5, one.y - 21, one.px + 10, tall, 5);
    }
    if (cue.worker >= 0) {
      const y = this.rowY(cue.worker, this.workers.length);
      const half = Math.min(WORKER_HALF, row / 2 - 2) + 3;
      draw.roundRect(workerX - 3, y - half, worker + 6, 2 * half, 8);
    }
    draw.stroke();
  }

  gate(lane, y, half) {
    const { laneX, laneW } = this.place;
    const draw = this.context;
    const held = value(lane.lso, this.at) < value(lane.hw, this.at);
    const x = laneX + Math.min(laneW - 3, Math.max(1, lane.gate));
    draw.strokeStyle = this.theme.page;
    draw.lineWidth = 6;
    line(draw, x, y - half - 6, x, y + half + 6);
    draw.strokeStyle = this.theme.text;
    draw.lineWidth = held ? 3 : 2;
    line(draw, x, y - half - 6, x, y + half + 6);
    if (held) {
      draw.fillStyle = this.theme.text;
      draw.beginPath();
      draw.moveTo(x - 5, y - half - 8);
      draw.lineTo(x + 5, y - half - 8);
      draw.lineTo(x, y - half - 2);
      draw.fill();
    }
  }

  worker(worker, n) {
    const { workerX, worker: wide, row, compact, source } = this.place;
    const draw = this.context;
    const y = this.rowY(n, this.workers.length);
    const half = Math.min(WORKER_HALF, row / 2 - 2);
    const strikes = worker === null ? this.data.foreign_struck : worker.struck;
    const struck = strikes.some((at) => this.at >= at && this.at - at < STRUCK_MS);
    const asked = worker !== null && this.askedOf(n);
    const epoch = worker === null ? -1 : value(worker.epoch, this.at);
    const raised = worker?.epoch.some(
      ([at, each]) => each > 0 && this.at >= at && this.at - at < STRUCK_MS,
    );
    const busy = this.data.boxes.some(
      (box) =>
        box[WORKER] === (worker === null ? -1 : n) &&
        this.at >= box[BEGINS] - DEPARTS_MS &&
        (box[ENDED] < 0 || this.at < Math.max(box[ENDED], box[WRITTEN])),
    );
    draw.fillStyle = struck ? this.theme.strike : this.theme.track;
    draw.strokeStyle = asked ? this.theme.strike : raised ? this.theme.primary : busy ? this.theme.text : this.theme.line;
    draw.lineWidth = raised || asked ? 2.5 : 1.2;
    draw.setLineDash(worker === null ? [4, 3] : []);
    draw.beginPath();
    draw.roundRect(workerX + 1, y - half, wide - 2, 2 * half, 6);
    draw.fill();
    draw.stroke();
    draw.setLineDash([]);
    if (worker !== null) this.ghost(worker, y, half);
    const colour = struck ? "#fff" : this.theme.text;
    const x = workerX + 8;
    if (worker === null) {
      const name = wide < 90 ? "other" : "another producer";
      this.text(struck ? `⚡ ${name}` : name, x, y, { size: 11, colour });
      return;
    }
    const done = value(worker.done, this.at);
    const share = worker.total > 0 ? clamp(done / worker.total) : 0;
    const idle = share >= 1 ? "done" : "waiting";
    const at = this.frozen() ? "cut off" : busy ? "writing" : idle;
    const state = struck ? "⚡ fault" : asked ? `⚡ ${asked}` : at;
    const epochs = epoch < 0 ? "" : `epoch ${epoch}`;
    const second = half > 14 ? 8 : 0;
    const up = compact ? 3 : 0; // of the bar below the words
    this.text(worker.name, x, y - second - up, { bold: true, colour, most: wide - 66 });
    this.text(epochs, workerX + wide - 8, y - second - up, { size: 11, colour, align: "right" });
    if (second) this.text(state, x, y + second - up, { size: 11, colour, faint: !struck && !busy });
    if (compact) this.progress(workerX + 6, y + half - 4, wide - 12, share, 3);
    else this.progress(0, y, source, share, 7);
    if (!compact) {
      const label = `${number(done)} of ${number(worker.total)}`;
      this.text(label, 0, y + 12, { size: 11, faint: true });
      this.text(worker.name, 0, y - 13, { bold: true, size: 11 });
      draw.strokeStyle = this.theme.line;
      draw.lineWidth = 1.2;
      line(draw, source + 6, y, workerX - 4, y);
      line(draw, workerX - 9, y - 4, workerX - 4, y);
      line(draw, workerX - 9, y + 4, workerX - 4, y);
    }
  }

  /** A worker that was stopped and given up, behind its successor, until Kafka refuses it. */
  ghost(worker, y, half) {
    const { workerX, worker: wide, compact } = this.place;
    const lasts = (until) => this.at < until + STRUCK_MS;
    const period = worker.zombies.findLast(([since, until]) => this.at >= since && lasts(until));
    if (period === undefined) return;
    const refused = this.at >= period[1];
    const draw = this.context;
    draw.strokeStyle = this.theme.strike;
    draw.lineWidth = 1.6;
    draw.setLineDash([4, 3]);
    draw.beginPath();
    draw.roundRect(workerX + 6, y - half - 4, wide, 2 * half, 6);
    draw.stroke();
    draw.setLineDash([]);
    const word = compact ? (refused ? "✋" : "☾") : refused ? "✋ refused" : "☾ zombie";
    const look = { size: 11, bold: true };
    this.text(word, workerX + wide + 10, y - half + 4, look);
  }

  /** What somebody asked to be done to a worker and is not to be seen yet; undefined: nothing. */
  askedOf(n) {
    const request = this.data.asked.findLast(({ worker }) => worker < 0 || worker === n);
    if (request === undefined) return undefined;
    const strikes = this.workers[n].struck.filter((at) => at <= this.at);
    const done = strikes.some((at) => mapped(this.data.clock, 0, 1, at) >= request.at);
    return done ? undefined : request.what;
  }

  progress(x, y, wide, share, tall) {
    const draw = this.context;
    draw.fillStyle = this.theme.line;
    draw.fillRect(x, y - tall / 2, wide, tall);
    draw.fillStyle = this.theme.COMMITTED;
    draw.fillRect(x, y - tall / 2, wide * share, tall);
  }

  /** Records on their way to the log, and from the log to the readers. */
  flights() {
    const { workerX, worker, readers, laneX, laneW } = this.place;
    let dots = 0;
    const dot = (from, to, share, colour) => {
      if (share <= 0 || share >= 1 || dots > DOTS_MAX) return;
      dots += 1;
      const eased = share * share * (3 - 2 * share);
      const x = from[0] + (to[0] - from[0]) * share;
      const y = from[1] + (to[1] - from[1]) * eased;
      this.context.fillStyle = colour;
      this.context.beginPath();
      this.context.arc(x, y, 2.8, 0, 2 * Math.PI);
      this.context.fill();
    };
    const inLane = (x) => Math.min(laneX + laneW, Math.max(laneX, x));
    this.lanes.forEach((lane, n) => {
      const y = this.rowY(n, this.lanes.length);
      const head = [inLane(laneX + lane.reach * this.scale - lane.scroll), y];
      for (const box of lane.boxes) {
        if (box[BEGINS] - DEPARTS_MS > this.at) break;
        if (this.at > box[WRITTEN]) continue;
        const from = box[WORKER] < 0 ? this.workers.length - 1 : box[WORKER];
        const start = [workerX + worker, this.rowY(from, this.workers.length)];
        const many = Math.min(DOTS, Math.max(2, Math.round(Math.log2(1 + box[RECORDS]))));
        for (let k = 0; k < many; k += 1) {
          // All of them are there when the last record is written.
          const early = (many - 1 - k) * APART_MS;
          const share = k / Math.max(1, many - 1);
          const there = box[BEGINS] + share * (box[WRITTEN] - box[BEGINS]) - early;
          const departs = there - FLIGHT_MS;
          dot(start, head, (this.at - departs) / FLIGHT_MS, this.theme.PENDING);
        }
      }
      for (const one of lane.shown) {
        const { box } = one;
        const from = [inLane(one.x + one.px / 2), y + 12];
        const falls = [
          [box[WRITTEN], readers + 4, this.theme.faint],
          [box[DELIVERED], readers + 40, this.theme.COMMITTED],
        ];
        for (const [at, to, colour] of falls) {
          if (at < 0 || this.at < at || this.at > at + FALL_MS + 120) continue;
          for (let k = 0; k < 3; k += 1) {
            dot(from, [from[0], to], (this.at - at - 40 * k) / FALL_MS, colour);
          }
        }
      }
    });
  }

  readers() {
    const { readers, width, compact, workerX } = this.place;
    const sum = (name, at) => this.lanes.reduce((total, lane) => total + value(lane[name], at), 0);
    const all = sum("uncommitted", this.at);
    const aborted = sum("aborted", this.at);
    const committed = sum("committed", this.at);
    const repeated = sum("repeated", this.at);
    const twiceOver = repeated ? `${number(repeated)} twice` : "";
    const waits = Math.max(0, all - aborted - committed);
    const most = Math.max(1, sum("uncommitted", this.length));
    const x = compact ? 0 : workerX;
    const wide = width - x - 2;
    const draw = this.context;
    const narrow = width < NARROW_PX;
    const [unit, of, at] = narrow ? ["", "", ""] : [" records", " of them", " at the gate"];
    const rows = [
      ["read_uncommitted gets", all, aborted ? `${number(aborted)}${of} aborted` : twiceOver, [
        [committed, this.theme.COMMITTED],
        [waits, this.stripes],
        [aborted, this.theme.MARKER],
      ]],
      ["read_committed gets", committed, waits ? `${number(waits)} wait${at}` : twiceOver, [
        [committed, this.theme.COMMITTED],
      ]],
    ];
    rows.forEach(([name, count, rest, parts], n) => {
      const y = readers + 8 + 36 * n;
      const said = `${name} ${number(count)}${unit}${rest ? `, ${rest}` : ""}`;
      this.text(said, x, y, { size: 12.5, bold: n === 1, most: wide });
      draw.fillStyle = this.theme.track;
      draw.fillRect(x, y + 10, wide, 9);
      let from = x;
      for (const [records, fill] of parts) {
        const px = (wide * records) / most;
        draw.fillStyle = fill;
        draw.fillRect(from, y + 10, px, 9);
        from += px;
      }
    });
    if (!compact) this.text("Two readers", 0, readers + 8, { faint: true });
  }

  text(text, x, y, { size = 12, bold, faint, colour, align = "left", most } = {}) {
    const draw = this.context;
    draw.font = `${bold ? "600 " : ""}${size}px ${this.theme.font}`;
    draw.textAlign = align;
    draw.fillStyle = colour ?? (faint ? this.theme.faint : this.theme.text);
    let shown = text;
    if (most !== undefined && most > 0) {
      while (shown.length > 2 && draw.measureText(shown).width > most) {
        shown = `${shown.slice(0, -2)}…`;
      }
    }
    draw.fillText(shown, x, y);
  }
}

const find = (root, selector) => root.querySelector(selector);

function line(draw, x, y, x2, y2) {
  draw.beginPath();
  draw.moveTo(x, y);
  draw.lineTo(x2, y2);
  draw.stroke();
}

/** A cross of dark on light, for an aborted box. */
function cross(draw, x, y, half) {
  if (half < 2) return;
  for (const [colour, width] of [
    ["#fff", 3.5],
    ["#111", 1.6],
  ]) {
    draw.strokeStyle = colour;
    draw.lineWidth = width;
    line(draw, x - half, y - half, x + half, y + half);
    line(draw, x - half, y + half, x + half, y - half);
  }
}

/** A box whose records are repeats of earlier ones. */
function twice(draw, x, top, px, theme) {
  draw.fillStyle = theme.strike;
  draw.fillRect(x, top, px, 4);
  if (px < 18) return;
  draw.font = `700 10px ${theme.font}`;
  draw.textAlign = "right";
  draw.fillRect(x + px - 17, top, 17, 12);
  draw.fillStyle = "#fff";
  draw.fillText("2×", x + px - 2, top + 6);
}

/** A fill of diagonal stripes. */
function stripes(draw, colour, between) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const brush = tile.getContext("2d");
  brush.fillStyle = between;
  brush.fillRect(0, 0, 8, 8);
  brush.strokeStyle = colour;
  brush.lineWidth = 3;
  for (const from of [-8, 0, 8]) line(brush, from - 2, 10, from + 10, -2);
  return draw.createPattern(tile, "repeat");
}
