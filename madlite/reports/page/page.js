/* The page of results: theme, filters, sorting, charts.  Texts of the data are only ever set as text. */
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("page-data")?.textContent ?? "{}"); // a list of the dashboard has none
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const element = (name, text = "", kind = "") => {
    const made = document.createElement(name);
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  const number = (value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1e9 || (size > 0 && size < 1e-4)) return value.toExponential(3);
    if (size >= 1000) return value.toLocaleString("en-US", { maximumFractionDigits: 0 });
    return String(Number(value.toPrecision(4)));
  };
  const tick = (value) => {
    const size = Math.abs(value);
    if (size >= 1e9 || (size > 0 && size < 1e-3)) return value.toExponential(1);
    return value.toLocaleString("en-US", { maximumSignificantDigits: 6 });
  };

  // Charts: made when they come into view, of data that is in the page.

  const charts = new Map();

  const axes = () => [
    { stroke: () => color("--soft"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { show: false }, size: 28, space: 60,
      values: (u, splits) => splits.map((at) => (Number.isInteger(at) ? tick(at) : "")) },
    { stroke: () => color("--soft"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { show: false }, space: 34,
      size: (u, texts) => Math.max(36, ...(texts || []).map((text) => 10 + 6.6 * text.length)),
      values: (u, splits) => splits.map(tick) },
  ];

  const tooltip = (lines) => {
    let tip;
    return {
      hooks: {
        init: (u) => {
          tip = element("div", "", "tip");
          tip.hidden = true;
          u.over.append(tip);
        },
        setCursor: (u) => {
          const at = u.cursor.idx;
          tip.hidden = at === null || at === undefined || u.cursor.left < 0;
          if (tip.hidden) return;
          tip.textContent = lines(u, at);
          const isRight = u.cursor.left < u.over.clientWidth / 2;
          tip.classList.toggle("right", isRight);
          tip.classList.toggle("left", !isRight);
        },
      },
    };
  };

  /* Says of an upright axis that does not begin at zero where it does. */
  const axisNote = (holder) => {
    const note = element("span", "", "soft axis-note");
    holder.parentElement.querySelector("figcaption").append(note);
    return { hooks: { setScale: (u, key) => {
      const low = u.scales.y.min;
      if (key === "y") note.textContent = low > 0 ? `axis begins at ${number(low)}, not 0` : "";
    } } };
  };

  const options = (holder, more) => ({
    width: Math.max(120, holder.clientWidth),
    height: holder.clientHeight,
    legend: { show: false },
    cursor: { y: false, drag: { x: true, y: false } },
    axes: axes(),
    ...more,
  });

  /* Room above and below, also where all values are the same. */
  const roomy = (u, low, high) => {
    if (low === null || low === undefined) return [0, 1];
    const room = (high - low) * 0.12 || Math.abs(high) * 0.02 || 1;
    return [low - room, high + room];
  };

  const line = (u, y, stroke, dash) => {
    const at = u.valToPos(y, "y", true);
    if (at < u.bbox.top || at > u.bbox.top + u.bbox.height) return;
    stretch(u, u.bbox.left, at, u.bbox.left + u.bbox.width, at, stroke, dash);
  };
  const stretch = (u, x0, y0, x1, y1, stroke, dash) => {
    const pen = u.ctx;
    pen.save();
    pen.beginPath();
    pen.strokeStyle = stroke;
    pen.lineWidth = 1.5 * devicePixelRatio;
    pen.setLineDash(dash.map((each) => each * devicePixelRatio));
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    pen.stroke();
    pen.restore();
  };

  const trend = (holder) => {
    const own = data.trends[holder.dataset.trend];
    const at = own.at.length ? own.at : own.values.map((_, place) => place);
    const times = own.when.map((text) => Date.parse(`${text.slice(0, 19).replace(" ", "T")}Z`) / 1000);
    const isByDate = times.length > 1 && times.every((time, place) => Number.isFinite(time) && (!place || time >= times[place - 1])) && times.at(-1) > times[0];
    const numbers = isByDate ? times : at.map((place) => place + 1);
    const doubtful = new Set(own.suspects);
    const level = (place) => own.levels.reduce((found, [begin, value]) => (begin <= place ? value : found), null);
    const before = (begin) => { // between the last result before a level and its first one
      const place = at.findIndex((each) => each >= begin);
      return place > 0 ? (numbers[place - 1] + numbers[place]) / 2 : -Infinity;
    };
    const label = (u, x, text) => {
      const pen = u.ctx;
      const isRight = x < u.bbox.left + u.bbox.width / 2;
      pen.save();
      pen.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      pen.fillStyle = color("--warn");
      pen.textAlign = isRight ? "left" : "right";
      pen.textBaseline = "top";
      pen.fillText(text, x + (isRight ? 5 : -5) * devicePixelRatio, u.bbox.top, u.bbox.width * 0.6);
      pen.restore();
    };
    const draw = (u) => {
      own.levels.forEach(([begin, value], n) => {
        const end = n + 1 < own.levels.length ? before(own.levels[n + 1][0]) : Infinity;
        const [x0, x1] = [before(begin), end].map((x) => u.valToPos(Math.min(Math.max(x, u.scales.x.min), u.scales.x.max), "x", true));
        const y = u.valToPos(value, "y", true);
        if (own.levels.length > 1 && x1 > x0) stretch(u, x0, y, x1, y, color("--level"), []);
        if (n && before(begin) > u.scales.x.min && before(begin) < u.scales.x.max) {
          stretch(u, x0, u.bbox.top, x0, u.bbox.top + u.bbox.height, color("--warn"), [4, 4]);
          label(u, x0, own.changes[n - 1]);
        }
      });
      own.references.forEach(([value]) => line(u, value, color("--mark"), [6, 4]));
      if (own.base !== null) line(u, own.base, color("--soft"), [2, 4]);
    };
    const tip = (u, place) => {
      const lines = [`${number(own.values[place])} ${own.metric}`, `result ${at[place] + 1} of ${own.total}`];
      if (own.labels[place]) lines.push(own.labels[place]);
      if (doubtful.has(place)) lines.push("suspect");
      if (own.levels.length > 1) lines.push(`level ${number(level(at[place]))}`);
      return lines.join("\n");
    };
    const [across, upright] = axes();
    const byDate = { space: 110, values: (u, splits, place, space, step) => splits.map((time) => {
      const text = new Date(time * 1000).toISOString();
      return step >= 86400 ? text.slice(0, 10) : step >= 60 ? text.slice(5, 16).replace("T", " ") : text.slice(11, 19);
    }) };
    return new uPlot(options(holder, {
      tzDate: (time) => uPlot.tzDate(new Date(time * 1000), "Etc/UTC"),
      axes: [isByDate ? { ...across, ...byDate } : across, upright],
      scales: { x: { time: isByDate, range: (u, low, high) => [low - Math.max(0.5, (high - low) * 0.02), high + Math.max(0.5, (high - low) * 0.02)] }, y: { range: (u, low, high) => (own.base === null || low === null ? roomy(u, low, high) : roomy(u, Math.min(low, own.base), Math.max(high, own.base))) } },
      series: [{}, { stroke: () => color("--c0"), width: 1.5, points: { show: own.values.length <= 200, size: 6, fill: () => color("--c0") } },
        { stroke: () => color("--warn"), width: 0, paths: () => null, points: { show: true, size: 9, width: 2, stroke: () => color("--warn"), fill: () => color("--card") } }],
      hooks: { draw: [draw] },
      plugins: [tooltip(tip), axisNote(holder)],
    }), [numbers, own.values, own.values.map((value, place) => (doubtful.has(place) ? value : null))], holder);
  };

  const steps = (holder) => {
    const panel = data.panels[holder.dataset.panel];
    const own = panel.quantities[holder.dataset.quantity];
    const joined = uPlot.join(own.curves.map(([, at, values]) => [at, values]));
    const shade = (u) => {
      if (!panel.window) return;
      const [x0, x1] = panel.window.map((x) => u.valToPos(Math.min(Math.max(x, u.scales.x.min), u.scales.x.max), "x", true));
      u.ctx.save();
      u.ctx.fillStyle = color("--accent-soft");
      u.ctx.globalAlpha = 0.55;
      u.ctx.fillRect(x0, u.bbox.top, Math.max(1, x1 - x0), u.bbox.height);
      u.ctx.restore();
    };
    const tip = (u, place) => {
      const lines = own.curves.flatMap(([run], n) => {
        const value = joined[n + 1][place];
        return value === null || value === undefined ? [] : [`${number(value)}  ${panel.runs[run]}`];
      });
      return [`step ${joined[0][place]}`, ...lines].join("\n");
    };
    return new uPlot(options(holder, {
      scales: { x: { time: false }, y: { range: roomy } },
      series: [{}, ...own.curves.map(([run]) => ({ stroke: () => color(`--c${run}`), width: 1.4, spanGaps: true, points: { show: joined[0].length <= 40, size: 5 } }))],
      hooks: { drawClear: [shade] },
      plugins: [tooltip(tip), axisNote(holder)],
    }), joined, holder);
  };

  const make = (holder) => {
    if (charts.has(holder) || !holder.clientWidth) return;
    charts.set(holder, holder.dataset.trend === undefined ? steps(holder) : trend(holder));
    sizes.observe(holder);
  };
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const chart = charts.get(target);
      if (chart && target.clientWidth && target.clientWidth !== chart.width) chart.setSize({ width: target.clientWidth, height: target.clientHeight });
    }
  });
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        make(entry.target);
        seen.unobserve(entry.target);
      }
    }
  }, { rootMargin: "400px" });
  const holders = all(".chart");
  holders.forEach((holder) => seen.observe(holder));
  const redraw = () => charts.forEach((chart) => chart.redraw(false, true));
  addEventListener("beforeprint", () => holders.forEach(make));
  document.getElementById("print").addEventListener("click", () => print());

  // The values of a trend as a table, made when it is opened.

  all("details[data-values]").forEach((details) => details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("table")) return;
    const own = data.trends[details.dataset.values];
    const head = ["Result", own.metric, own.labels.length ? "From" : "", own.suspects.length ? "Note" : ""].filter(Boolean);
    const table = element("table");
    const caption = element("caption", own.at.length ? `${own.values.length} of ${own.total} values: of each piece the least and the largest` : "All values, the oldest first", "soft");
    const top = table.createTHead().insertRow();
    head.forEach((text) => {
      const cell = element("th", text);
      cell.scope = "col";
      top.append(cell);
    });
    const body = table.createTBody();
    const doubtful = new Set(own.suspects);
    own.values.forEach((value, place) => {
      const row = body.insertRow();
      row.append(element("td", String((own.at.length ? own.at[place] : place) + 1)), element("td", String(value), "number"));
      if (own.labels.length) row.append(element("td", own.labels[place]));
      if (own.suspects.length) row.append(element("td", doubtful.has(place) ? "suspect" : ""));
    });
    table.prepend(caption);
    const region = element("div", "", "scroll");
    region.tabIndex = 0;
    region.setAttribute("role", "region");
    region.setAttribute("aria-label", "Values");
    region.append(table);
    details.append(region);
  }));

  // Themes: the system's until one is chosen.

  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const shown = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    button.setAttribute("aria-pressed", String(root.dataset.theme !== undefined));
    redraw();
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("madlite-theme", root.dataset.theme);
    } catch { /* not kept */ }
    shown();
  });
  system.addEventListener("change", shown);
  shown();

  // Sorting: by the cells' values where they have some, else by their texts.

  const sortBy = (table, place, direction) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, n) => {
      if (n === place) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    const value = (row) => {
      const cell = row.cells[place];
      if (cell.dataset.v === undefined) return cell.textContent.trim().toLowerCase();
      return cell.dataset.v === "" ? null : Number(cell.dataset.v);
    };
    const rows = [...table.tBodies[0].rows].map((row) => [value(row), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
      return direction * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
  };
  all("table.sortable").forEach((table) => [...table.tHead.rows[0].cells].forEach((head, place) => {
    if ("plain" in head.dataset) return;
    const own = element("button", head.textContent);
    own.type = "button";
    head.replaceChildren(own);
    own.addEventListener("click", () => sortBy(table, place, head.getAttribute("aria-sort") === "ascending" ? -1 : 1));
  }));

  // Filters: kept in the address behind #, so that a link has them.

  const form = document.getElementById("filters"); // only where there is something to choose from
  const names = ["q", "model", "device", "precision", "status"];
  const words = ["success", "failure", "skipped", "suspect", "regression", "improvement"];
  const filtered = all("[data-i]").map((one) => [one, Number(one.dataset.i)]);
  const groups = all("[data-group], figure.group");
  const emptied = new Map(all("main > section").map((section) => {
    const text = element("p", "Nothing here matches the filter.", "soft");
    text.hidden = true;
    if (section.querySelector("[data-i]")) section.append(text);
    return [section, text];
  }));

  const apply = () => {
    const chosen = Object.fromEntries(names.map((name) => [name, form.elements[name].value]));
    const wanted = ["model", "device", "precision"].map((name) => (chosen[name] ? data.filters[name].indexOf(chosen[name]) : -1));
    const mask = chosen.status ? 1 << words.indexOf(chosen.status) : 0;
    const parts = chosen.q.toLowerCase().split(/\s+/).filter(Boolean);
    const visible = data.filters.items.map((item) =>
      wanted.every((place, n) => place < 0 || item[n] === place) && (!mask || (item[3] & mask) !== 0) && parts.every((part) => item[4].includes(part)));
    filtered.forEach(([one, item]) => { one.hidden = !visible[item]; });
    groups.forEach((group) => { group.hidden = !group.querySelector("[data-i]:not([hidden])"); });
    emptied.forEach((text, section) => { text.hidden = Boolean(section.querySelector("[data-i]:not([hidden])")); });
    const rows = all("#results-table tbody tr");
    const count = rows.filter((row) => !row.hidden).length;
    document.getElementById("shown").textContent = `${count.toLocaleString("en-US")} of ${rows.length.toLocaleString("en-US")} series`;
    return chosen;
  };
  const keep = () => {
    const chosen = apply();
    const pairs = new URLSearchParams(Object.entries(chosen).filter(([, value]) => value));
    const text = pairs.toString();
    history.replaceState(null, "", text ? `#${text}` : `${location.pathname}${location.search}`);
  };
  const reach = (id) => {
    const target = document.getElementById(id);
    if (!target) return;
    target.scrollIntoView();
    if (!target.hasAttribute("tabindex")) target.tabIndex = -1;
    target.focus({ preventScroll: true });
  };
  const restore = () => {
    const text = location.hash.slice(1);
    if (text && !text.includes("=")) return;
    const pairs = new URLSearchParams(text);
    names.forEach((name) => { form.elements[name].value = pairs.get(name) ?? ""; });
    all("select", form).forEach((one) => { if (one.selectedIndex < 0) one.value = ""; });
    apply();
  };
  if (form) {
    const narrow = matchMedia("(max-width: 760px)"); // there the fields have a screen of their own
    const fold = () => { form.querySelector("details").open = !narrow.matches; };
    narrow.addEventListener("change", fold);
    fold();
    form.addEventListener("input", keep);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(keep));
    addEventListener("hashchange", restore);
    restore();
    apply();
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (!link) return;
    event.preventDefault();
    reach(link.getAttribute("href").slice(1));
  });
})();
