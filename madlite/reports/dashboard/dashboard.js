/* Live parts of the dashboard: runs that go on, the end of a log, lists that are loaded again.  Texts are only set as text. */
(() => {
  "use strict";
  const place = document.getElementById("live");
  const cards = document.getElementById("live-runs");
  const log = document.getElementById("log");
  const own = place?.dataset.own ?? "";
  const shown = new Map(); // id → its card, and when its state came
  const element = (name, text = "", kind = "") => {
    const made = document.createElement(name);
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const duration = (seconds) => {
    const whole = Math.max(0, Math.round(seconds));
    const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
    if (hours) return `${hours} h ${String(minutes).padStart(2, "0")} min`;
    return minutes ? `${minutes} min ${String(whole % 60).padStart(2, "0")} s` : `${whole} s`;
  };
  const figure = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: value >= 1000 ? 6 : 4 });

  // Runs that go on.

  const fill = (card, one) => {
    const { progress } = one;
    const link = element("a", one.card || one.id);
    link.href = `/runs/${encodeURIComponent(one.id)}`;
    const head = element("h3");
    const state = one.state === "RUNNING" ? progress.state : one.state.toLowerCase();
    const kind = { SUCCESS: one.suspect ? "warn" : "good", RUNNING: "live", SKIPPED: "plain" }[one.state] ?? "bad";
    head.append(own ? element("span", one.card || one.id) : link, element("span", state + (one.cause ? `: ${one.cause}` : ""), `badge ${kind}`));
    if (progress.doing && progress.doing !== progress.state && one.state === "RUNNING") head.append(element("small", progress.doing));
    const bar = element("progress");
    bar.setAttribute("aria-label", "Steps done");
    bar.hidden = one.state === "RUNNING" && !progress.steps; // how many there will be is unknown
    bar.max = progress.steps ?? 1;
    bar.value = one.state === "RUNNING" ? progress.step ?? 0 : bar.max;
    const figures = element("dl", "", "figures");
    const add = (name, text, kind_ = "") => {
      const pair = element("div");
      pair.append(element("dt", name), element("dd", text, kind_));
      figures.append(pair);
    };
    if (progress.step !== null) add("step", progress.steps ? `${progress.step} / ${progress.steps}` : String(progress.step));
    if (one.number) add("number", one.number);
    else if (progress.speed !== null) add("speed", `${figure(progress.speed)} ${progress.unit}`);
    if (progress.loss !== null) add("loss", figure(progress.loss));
    if (one.elapsed_s !== null) add("elapsed", duration(one.elapsed_s), "elapsed");
    if (one.state === "RUNNING" && progress.left_s !== null) add("left", duration(progress.left_s), "left");
    card.replaceChildren(head, bar, figures);
  };
  const show = (one) => {
    if (!place || (own && one.id !== own)) return;
    let card = shown.get(one.id)?.card;
    if (!card) {
      card = element("article", "", "card plain run-live");
      card.dataset.run = one.id;
      cards.append(card);
    }
    shown.set(one.id, { card, one, at: performance.now() });
    fill(card, one);
    place.hidden = false;
  };
  const showAll = (runs) => {
    const now = new Set(runs.map((one) => one.id));
    for (const [id, { card, one }] of shown) {
      if (!now.has(id) && one.state === "RUNNING") {
        card.remove();
        shown.delete(id);
      }
    }
    runs.forEach(show);
    if (place && !own) place.hidden = shown.size === 0;
  };
  setInterval(() => {
    for (const { card, one, at } of shown.values()) {
      if (one.state !== "RUNNING") continue;
      const since = (performance.now() - at) / 1000;
      const elapsed = card.querySelector(".elapsed");
      const left = card.querySelector(".left");
      if (elapsed) elapsed.textContent = duration(one.elapsed_s + since);
      if (left) left.textContent = duration(one.progress.left_s - since);
    }
  }, 1000);

  // Parts of the page that are loaded again when the index has changed, while nobody types or selects in them.

  let waiting = 0;
  let took = 0; // what takes long is asked for less often
  const fresh = async () => {
    waiting = 0;
    const begun = performance.now();
    const parts = [...document.querySelectorAll("[data-fresh]")];
    if (!parts.length || document.hidden) return;
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok) return;
    const text = await answer.text();
    took = performance.now() - begun;
    const page = new DOMParser().parseFromString(text, "text/html");
    for (const part of parts) {
      const next = page.querySelector(`[data-fresh="${part.dataset.fresh}"]`);
      if (next && !part.contains(document.activeElement) && !part.querySelector("input:checked, details[open]") && next.innerHTML !== part.innerHTML) part.replaceChildren(...next.childNodes);
    }
  };
  const freshSoon = () => {
    if (!waiting) waiting = setTimeout(() => fresh().catch(() => {}), Math.min(60000, Math.max(1500, 10 * took)));
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) freshSoon(); });

  // What goes on is asked for every two seconds, of a slow server less often, while the page is looked at.

  const state = document.getElementById("stream");
  const say = (kind, text) => {
    state.className = `state ${kind}`;
    document.getElementById("stream-text").textContent = text;
  };
  const setLog = (text) => {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    log.textContent = text;
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  const follows = log && "live" in log.dataset;
  const address = follows ? `/now?run=${encodeURIComponent(log.dataset.run)}` : "/now";
  let changes = null; // of the index, by which lists are loaded again
  const ended = (one, was) => {
    if (one.id === own) freshSoon(); // its curves
    if (one.state === "RUNNING" || (was !== "RUNNING" && one.id !== own)) return;
    if (follows && one.id === log.dataset.run) setTimeout(() => location.reload(), 1500);
    freshSoon();
  };
  const take = (now) => {
    const before = new Map([...shown].map(([id, { one }]) => [id, one]));
    const known = now.runs.filter((one) => one.state === "RUNNING" || before.has(one.id) || one.id === own);
    showAll(known);
    known.filter((one) => JSON.stringify(one.progress) !== JSON.stringify(before.get(one.id)?.progress) || one.state !== before.get(one.id)?.state)
      .forEach((one) => ended(one, before.get(one.id)?.state));
    if (follows && now.log !== null && now.log !== log.textContent) setLog(now.log);
    if (changes !== null && changes !== now.changes) freshSoon();
    changes = now.changes;
  };
  const poll = async () => {
    const begun = performance.now();
    try {
      if (!document.hidden) {
        const answer = await fetch(address);
        if (!answer.ok) throw new Error(answer.statusText);
        take(await answer.json());
        say("on", "live");
      }
    } catch {
      say("off", "not connected");
    }
    setTimeout(poll, Math.min(60000, Math.max(2000, 10 * (performance.now() - begun)))); // it may have slept meanwhile
  };
  poll();
  if (log) log.scrollTop = log.scrollHeight;

  // Filters of the address: a choice is sent at once, and blank fields are no part of it.

  document.querySelectorAll("form.choose").forEach((form) => {
    form.querySelectorAll("select").forEach((one) => one.addEventListener("change", () => form.requestSubmit()));
    form.addEventListener("submit", () => {
      [...form.elements].forEach((one) => { if (one.name && !one.value) one.disabled = true; });
    });
    addEventListener("pageshow", () => [...form.elements].forEach((one) => { one.disabled = false; }));
  });
})();
