"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const template = document.querySelector("main").cloneNode(true);
  let current = null;
  const plots = [];
  const showReport = (number) => {
  const entry = page.reports[number], report = entry.report;
  const by = (id) => document.getElementById(id);
  const make = (tag, props = {}, ...inside) => {
    const node = Object.assign(document.createElement(tag), props);
    node.append(...inside.filter((part) => part !== null && part !== undefined));
    return node;
  };
  const known = (value) => typeof value === "number" && Number.isFinite(value);
  const db = (value) => (known(value) ? value.toFixed(2) : "exact");
  const brief = (value) => (known(value) ? Number(value.toPrecision(3)).toString() : "-");
  const percent = (value, digits = 1) => (known(value) ? (100 * value).toFixed(digits) + " %" : "-");
  const size = (bytes) => {
    const units = ["B", "kB", "MB", "GB"];
    let unit = 0;
    while (bytes >= 999.95 && unit < 3) { bytes /= 1000; unit += 1; }
    return (unit ? bytes.toFixed(1) : bytes) + " " + units[unit];
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  // ---- one report takes the place of another
  document.querySelector("main").replaceWith(template.cloneNode(true));
  document.querySelector("nav").replaceChildren();
  for (const plot of plots.splice(0)) plot.destroy();
  // Of an exporter's path the end tells most, but for what it puts after every name.
  const cutName = (text, most) => {
    const plain = text.replace(/^\//, "").replace(/_output_0$/, "") || text;
    return plain.length <= most ? plain : "…" + plain.slice(1 - most);
  };
  // Names beside each other are told apart by what they do not all end in.
  const cutNames = (texts, most) => {
    const [first, ...others] = texts;
    let ending = others.length ? first : "";
    while (ending && !(/^[/_.]/.test(ending) && texts.every((text) => text.length > ending.length && text.endsWith(ending)))) ending = ending.slice(1);
    return texts.map((text) => cutName(text.slice(0, text.length - ending.length), most));
  };

  // Exporters call weights by numbers: the node that reads one says where it is.
  const calledBy = (row) => (row.node ? row.node + ", weight" : row.tensor);

  // ---- rows: what is known of each tensor, from layers, budget and distributions
  const views = new Map(report.tensors.map((view) => [view.tensor, view]));
  const shares = new Map((report.budget ? report.budget.rows : []).map((row) => [row.tensor, row]));
  const layers = new Map(report.layers.map((layer) => [layer.tensor, layer]));
  const order = [...layers.keys()];
  const listed = new Set(order);
  for (const view of report.tensors) if (!listed.has(view.tensor)) order.push(view.tensor);
  const rows = order.map((tensor, index) => {
    const layer = layers.get(tensor), view = views.get(tensor), share = shares.get(tensor);
    return {
      index: index + 1, tensor,
      kind: view ? view.kind : "float",
      op: view ? view.op_type : "",
      format: view ? view.format : "float",
      sqnr: layer ? layer.sqnr_db : share ? share.own_sqnr_db : null,
      cosine: layer ? layer.cosine : null,
      error: layer ? layer.max_error : null,
      sensitivity: share ? share.sensitivity : null,
      measured: share ? share.samples > 0 : false,
      clipped: view ? view.clipped : null,
    };
  });

  const countBoxes = (boxes) => boxes.length + (boxes.length === 1 ? " box" : " boxes");

  // ---- header and summary
  by("version").textContent = report.version;
  by("title").textContent = entry.title;
  const seen = report.verification_samples + (report.held_out && report.calibration_samples ? " held-out samples" : " samples");
  by("subtitle").textContent = report.preset + " for " + report.target + ", " + (report.data.startsWith(seen) ? "" : seen + ", ") + report.data;
  const verdict = report.verdict;
  if (verdict) {
    const place = by("verdict");
    place.hidden = false;
    place.className = "verdict " + verdict.level;
    place.append(make("b", { textContent: verdict.level }), make("span", { textContent: entry.verdict }));
  }
  const cards = document.querySelector(".cards");
  const card = (label, value, small) => cards.append(make("div", { className: "card" },
    make("span", { className: "label", textContent: label }), make("b", { textContent: value }), make("small", { textContent: small || "" })));
  const scores = report.slices.length ? report.slices : report.outputs;
  const worst = [...scores].sort((a, b) => (a.sqnr_db ?? 1e9) - (b.sqnr_db ?? 1e9))[0];
  for (const row of report.accuracy) card(row.name + ", float to quantized", brief(row.float_score) + " → " + brief(row.quantized_score) + " " + row.unit,
    "gap " + brief(row.gap) + " (" + brief(row.low) + " to " + brief(row.high) + ", 95 %)" + (known(row.fused_score) ? "; fused " + brief(row.fused_score) : ""));
  if (worst) card("SQNR" + (scores.length > 1 ? (report.slices.length ? ", worst slice of the outputs" : ", worst output") : ""), db(worst.sqnr_db) + (known(worst.sqnr_db) ? " dB" : ""), worst.tensor + ", cosine " + (worst.cosine ?? 1).toFixed(5));
  const [less, more] = [report.size_after, report.size_before].sort((a, b) => a - b);
  if (report.size_before) card("constants", size(report.size_after), "from " + size(report.size_before) + (less ? ", " + (more / less).toFixed(2) + " times " + (less === report.size_after ? "smaller" : "larger") : ""));
  if (report.promoted.length) {
    const share = report.promoted.reduce((sum, region) => sum + region.multiply_adds, 0), formats = [...new Set(report.promoted.map((region) => region.format))];
    card("promoted to " + formats.join(", "), percent(share, 0), "of the multiply-adds, in " + report.promoted.length + (report.promoted.length === 1 ? " region" : " regions"));
  }
  if (report.fused.length) {
    const f = [...report.fused].sort((a, b) => (a.sqnr_db ?? 1e9) - (b.sqnr_db ?? 1e9))[0], exact = report.outputs.find((row) => row.tensor === f.tensor);
    card("through fused kernels", db(f.sqnr_db) + (known(f.sqnr_db) ? " dB" : ""), "here, " + f.tensor + (report.slices.length ? " as a whole" : "") + (exact && known(exact.sqnr_db) ? "; computed exactly " + db(exact.sqnr_db) + " dB" : ""));
  }
  if (report.latency) card("time for one sample", report.latency.quantized_ms.toFixed(2) + " ms", "float " + report.latency.float_ms.toFixed(2) + " ms");
  const seconds = Object.entries(report.seconds);
  const lasting = (s) => (s < 60 ? s.toFixed(1) + " s" : Math.floor(Math.round(s) / 60) + " min " + String(Math.round(s) % 60).padStart(2, "0") + " s");
  if (seconds.length) card("this run", lasting(seconds.reduce((sum, [, s]) => sum + s, 0)), (page.memory ? size(page.memory) + " at its peak; " : "") + seconds.filter(([, s]) => s > 0.05).sort((a, b) => b[1] - a[1]).slice(0, 3).map(([name, s]) => name + " " + lasting(s)).join(", "));
  if (Object.keys(report.quantized).length) card("quantized", Object.values(report.quantized).reduce((a, b) => a + b, 0) + " tensors", Object.entries(report.quantized).map(([kind, n]) => n + " x " + kind).join(", "));
  document.querySelector(".notes").append(...[...report.doubts, ...report.notes].map((text) => make("p", { className: "note", textContent: text })));

  // ---- plots
  const axis = (more) => Object.assign({ stroke: () => colour("quiet"), grid: { stroke: () => colour("line"), width: 1 }, ticks: { stroke: () => colour("line"), width: 1 }, font: "12px system-ui, sans-serif" }, more);
  const draw = (place, label, height, options, data) => {
    const old = plots.findIndex((plot) => plot.root.parentElement === place);
    if (old >= 0) { plots[old].destroy(); plots.splice(old, 1); }
    place.setAttribute("aria-label", label);
    const plot = new uPlot(Object.assign({ width: Math.max(240, place.clientWidth), height, cursor: { points: { size: 7 } } }, options), data, place);
    plots.push(plot);
    return plot;
  };
  const lines = (values, tone) => (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour(tone);
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
    for (const [scale, value] of values) {
      const at = plot.valToPos(value, scale, true);
      ctx.beginPath();
      if (scale === "x") { if (at >= bbox.left && at <= bbox.left + bbox.width) { ctx.moveTo(at, bbox.top); ctx.lineTo(at, bbox.top + bbox.height); } }
      else if (at >= bbox.top && at <= bbox.top + bbox.height) { ctx.moveTo(bbox.left, at); ctx.lineTo(bbox.left + bbox.width, at); }
      ctx.stroke();
    }
    ctx.restore();
  };
  // Names at the points that add most noise, where they do not cover each other.
  const noise = (ratio) => (known(ratio) ? 10 ** (-ratio / 10) : 0);
  const named = (plotted) => (plot) => {
    const falls = plotted.map((row, index) => [index, known(row.sqnr) ? noise(row.sqnr) - noise(layers.get(row.tensor).upstream_db) : 0]);
    const places = [];
    const { ctx, bbox } = plot, most = Math.min(5, bbox.width / (160 * devicePixelRatio));
    ctx.save();
    ctx.font = 11 * devicePixelRatio + "px system-ui, sans-serif";
    ctx.fillStyle = colour("ink");
    ctx.strokeStyle = colour("paper"); // around letters, so that they are read on a line as well
    ctx.lineWidth = 3 * devicePixelRatio;
    ctx.lineJoin = "round";
    ctx.textAlign = "left"; // the axes leave their own
    ctx.textBaseline = "alphabetic";
    for (const [index, fall] of falls.sort((a, b) => b[1] - a[1]).slice(0, 8)) {
      if (fall <= 0 || places.length >= most) continue;
      const text = cutName(plotted[index].tensor, 26), x = plot.valToPos(index + 1, "x", true), y = plot.valToPos(plotted[index].sqnr, "y", true) + 14 * devicePixelRatio;
      const width = ctx.measureText(text).width, left = Math.min(Math.max(x - width / 2, bbox.left), bbox.left + bbox.width - width);
      if (places.some(([a, b, c]) => left < b && left + width > a && Math.abs(y - c) < 14 * devicePixelRatio) || y > bbox.top + bbox.height) continue;
      places.push([left, left + width, y]);
      ctx.strokeText(text, left, y);
      ctx.fillText(text, left, y);
    }
    ctx.restore();
  };
  const pick = (rowsOf) => (plot) => plot.over.addEventListener("click", () => { const at = plot.cursor.idx; if (at !== null && at !== undefined && rowsOf[at]) select(rowsOf[at].tensor); });

  // Beyond this a tensor is exact but for rounding, and would hide the others (masks of -1e38 have 800 dB).
  const MOST_DB = 99;
  const drawLayers = () => {
    const plotted = rows.filter((row) => layers.has(row.tensor)).map((row) => ({ ...row, sqnr: known(row.sqnr) ? Math.min(row.sqnr, MOST_DB) : null }));
    const place = document.querySelector("#layers .plot");
    if (!plotted.length) { place.hidden = true; return; }
    draw(place, "SQNR of " + plotted.length + " layers in graph order; the table below has the numbers", 260, {
      scales: { x: { time: false } },
      axes: [axis({ label: "layer, in graph order", labelFont: "12px system-ui", values: (_, ticks) => ticks.map((t) => (Number.isInteger(t) ? t : "")) }), axis({ label: "dB", labelFont: "12px system-ui", size: 48 })],
      series: [{ label: "layer", value: (_, v) => (v === null ? "-" : plotted[Math.round(v) - 1]?.tensor ?? v) },
        { label: "SQNR dB", stroke: () => colour("accent"), fill: () => colour("accent-soft"), width: 2, points: { show: plotted.length < 160, size: 5 }, value: (_, v) => (v === null ? "-" : v.toFixed(2)) }],
      hooks: { ready: [pick(plotted)], draw: [named(plotted)] },
    }, [plotted.map((_, index) => index + 1), plotted.map((row) => row.sqnr)]);
  };
  const drawBudget = () => {
    const top = report.budget.rows.slice(0, document.documentElement.clientWidth < 640 ? 9 : 24);
    draw(document.querySelector("#budget .plot"), "Sensitivity of the " + top.length + " worst tensors: share of the outputs' noise with only that tensor quantized; the list below has the numbers", 300, {
      padding: [null, 84, null, null], // for the last name, which goes beyond its bar
      scales: { x: { time: false, range: [0.4, top.length + 0.6] }, y: { range: (_, low, high) => [0, (high || 1) * 1.1] } },
      axes: [axis({ splits: () => top.map((_, index) => index + 1), values: () => cutNames(top.map(calledBy), 20), rotate: -50, size: 120, gap: 2, font: "11px system-ui, sans-serif" }), axis({ label: "% of the noise", labelFont: "12px system-ui", size: 52 })],
      series: [{ label: "tensor", value: (_, v) => (v === null ? "-" : (top[Math.round(v) - 1] ? calledBy(top[Math.round(v) - 1]) : v)) },
        { label: "sensitivity", stroke: () => colour("warm"), fill: () => colour("warm-soft"), width: 1, paths: uPlot.paths.bars({ size: [0.7, 60] }), points: { show: false }, value: (_, v) => (v === null ? "-" : v.toFixed(2) + " %") }],
      hooks: { ready: [pick(top)] },
    }, [top.map((_, index) => index + 1), top.map((row) => 100 * row.sensitivity)]);
  };
  const drawHistogram = (view, place) => {
    const before = view.histogram, after = view.quantized_histogram, { low, high, counts } = before ?? after, step = (high - low) / counts.length;
    const edge = (high - low) * 0.03;
    const from = Math.min(low, Math.max(view.limits[0], low - (high - low))) - edge, to = Math.max(high, Math.min(view.limits[1], high + (high - low))) + edge;
    draw(place, "Histogram of " + view.tensor + " from " + brief(low) + " to " + brief(high) + ", clipped at " + brief(view.limits[0]) + " and " + brief(view.limits[1]), 240, {
      scales: { x: { time: false, range: [from, to] }, y: { distr: 3, range: (_, a, b) => [0.7, Math.max(2, b) * 1.6] } },
      axes: [axis({}), axis({ size: 58, values: (_, ticks) => ticks.map((t) => (t === null ? "" : t >= 1 && Number.isInteger(Math.log10(t)) ? t.toExponential(0).replace("e+", "e") : "")) })],
      series: [{ label: "value", value: (_, v) => brief(v) }, ...(before ? [{ label: "float", stroke: () => colour("accent"), fill: () => colour("accent-soft"), width: 1, paths: uPlot.paths.bars({ size: [1, 100] }), points: { show: false } }] : []), ...(after ? [{ label: "quantized", stroke: () => colour("warm"), width: 1.5, paths: uPlot.paths.stepped({ align: 0 }), points: { show: false }, spanGaps: false }] : [])],
      hooks: { draw: [lines([["x", view.limits[0]], ["x", view.limits[1]]], "warm")] },
    }, [counts.map((_, index) => low + (index + 0.5) * step), ...[before, after].filter(Boolean).map((one) => one.counts.map((count) => (count > 0 ? count : null)))]);
  };
  const drawChannels = (view, place) => {
    const count = view.channel_low.length;
    draw(place, "Range of each of " + count + " channels of " + view.tensor + ", limits " + brief(view.limits[0]) + " and " + brief(view.limits[1]), 240, {
      scales: { x: { time: false, range: [-0.5, Math.max(1, count) - 0.5] } },
      axes: [axis({ values: (_, ticks) => ticks.map((t) => (Number.isInteger(t) ? t : "")) }), axis({ size: 58 })],
      series: [{ label: "channel" }, { label: "highest", stroke: () => colour("accent"), width: 1, value: (_, v) => brief(v), points: { show: count < 60, size: 4 } }, { label: "lowest", stroke: () => colour("accent"), width: 1, value: (_, v) => brief(v), points: { show: count < 60, size: 4 } }],
      bands: [{ series: [1, 2], fill: () => colour("accent-soft") }],
      hooks: { draw: [lines([["y", view.limits[0]], ["y", view.limits[1]]], "warm")] },
    }, [view.channel_low.map((_, index) => index), view.channel_high, view.channel_low]);
  };

  // ---- the network
  let drawing = null;
  if (report.network && report.network.nodes.length) {
    by("network").hidden = false;
    by("network").querySelector(".how").textContent = report.network.nodes.length + " nodes. " + by("network").querySelector(".how").textContent;
    const factsOf = new Map();
    const of = (tensor, weights) => {
      let found = factsOf.get(tensor);
      if (!found) {
        const layer = layers.get(tensor), all = [tensor, ...weights].map((name) => shares.get(name)).filter(Boolean);
        found = { sqnr: layer ? Math.min(layer.sqnr_db ?? MOST_DB, MOST_DB) : null, sensitivity: all.length ? all.reduce((sum, share) => sum + share.sensitivity, 0) : null };
        factsOf.set(tensor, found);
      }
      return found;
    };
    drawing = drawNetwork(report.network, by("network"), { of, exact: MOST_DB, select: (tensor) => select(tensor, false) });
    window.drawing = drawing;
  }

  // ---- one tensor
  let selected = null;
  const select = (tensor, move = true) => {
    selected = tensor;
    if (drawing) drawing.reveal(tensor);
    for (const row of document.querySelectorAll("#table tbody tr")) row.setAttribute("aria-selected", row.dataset.tensor === tensor);
    const view = views.get(tensor), section = by("detail");
    section.hidden = !view;
    if (!view) return;
    by("detail-title").textContent = tensor;
    section.querySelector(".quiet").textContent = view.op_type + ", " + view.kind + " " + view.format + ", scale " + brief(view.scale) + ", values " + brief(view.range[0]) + " to " + brief(view.range[1]) + ", limits " + brief(view.limits[0]) + " to " + brief(view.limits[1]) + (view.clipped ? ", " + percent(view.clipped, 3) + " clipped" : ", nothing clipped");
    const [left, right] = section.querySelectorAll("figure");
    const distribution = view.histogram ?? view.quantized_histogram;
    left.hidden = !distribution;
    right.hidden = !view.channel_low.length;
    left.querySelector("figcaption").textContent = "Values" + (view.histogram && view.quantized_histogram ? ", float and quantized over each other" : "") + " (count on a logarithmic scale); dashed: where the range is clipped";
    right.querySelector("figcaption").textContent = "Lowest and highest value of each " + (view.kind === "weight" ? "output " : "") + "channel; dashed: the limits";
    if (distribution) drawHistogram(view, left.querySelector(".plot"));
    if (view.channel_low.length) drawChannels(view, right.querySelector(".plot"));
    if (move) section.scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  };

  // ---- the table
  const columns = [
    ["#", "index", true, (row) => String(row.index)], ["tensor", "tensor", false, null], ["operator", "op", false, (row) => row.op, "wide"],
    ["format", "format", false, (row) => row.format], ["SQNR dB", "sqnr", true, (row) => (row.sqnr === null && !layers.has(row.tensor) ? "-" : db(row.sqnr))],
    ["cosine", "cosine", true, (row) => (known(row.cosine) ? row.cosine.toFixed(5) : "-"), "wide"], ["max error", "error", true, (row) => brief(row.error), "wide"],
    ["sensitivity", "sensitivity", true, (row) => (known(row.sensitivity) ? (row.measured ? "" : "~") + percent(row.sensitivity, 2) : "-")], ["clipped", "clipped", true, (row) => (known(row.clipped) ? percent(row.clipped, 2) : "-"), "wide"],
  ];
  let sorting = { key: "index", down: false };
  const fill = () => {
    const words = by("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((row) => words.every((word) => (row.tensor + " " + row.op + " " + row.format + " " + row.kind).toLowerCase().includes(word)));
    const { key, down } = sorting;
    // What has no figure comes last, whichever way the rest is sorted.
    found.sort((a, b) => {
      const x = a[key], y = b[key];
      if (x === null || y === null) return (x === null) - (y === null) || a.index - b.index;
      const less = typeof x === "string" ? x.localeCompare(y) : x - y;
      return (down ? -less : less) || a.index - b.index;
    });
    by("table").tBodies[0].replaceChildren(...found.map((row) => {
      const line = make("tr", {});
      line.dataset.tensor = row.tensor;
      line.setAttribute("aria-selected", row.tensor === selected);
      line.addEventListener("click", () => select(row.tensor));
      for (const [, name, number, text, extra] of columns) {
        const cell = make("td", { className: (number ? "number " : name === "tensor" ? "name " : "") + (extra || "") });
        if (text) cell.textContent = text(row);
        else if (views.has(row.tensor)) cell.append(make("button", { className: "open", type: "button", textContent: row.tensor }));
        else cell.textContent = row.tensor;
        line.append(cell);
      }
      return line;
    }));
    by("shown").textContent = found.length === rows.length ? rows.length + " tensors" : found.length + " of " + rows.length + " tensors";
    for (const head of document.querySelectorAll("#table th")) head.setAttribute("aria-sort", head.dataset.key === key ? (down ? "descending" : "ascending") : "none");
  };
  by("table").tHead.append(make("tr", {}, ...columns.map(([title, key, number, , extra]) => {
    const button = make("button", { type: "button", textContent: title });
    button.addEventListener("click", () => { sorting = { key, down: sorting.key === key ? !sorting.down : key === "sensitivity" || key === "error" || key === "clipped" }; fill(); });
    const head = make("th", { scope: "col", className: (number ? "number " : "") + (extra || "") }, button);
    head.dataset.key = key;
    return head;
  })));
  by("filter").addEventListener("input", fill);
  fill();

  // ---- plain tables
  const plain = (id, heads, lines) => {
    if (!lines.length) return;
    by(id).hidden = false;
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col", textContent: text })))),
      make("tbody", {}, ...lines.map((cells) => make("tr", {}, ...cells.map((text, index) => make("td", { className: index ? (index === cells.length - 1 ? "words" : "") : "name", textContent: text }))))));
    by(id).querySelector(".scroll").replaceChildren(table);
  };
  const errorDb = (value) => (value > 0 ? (-10 * Math.log10(value)).toFixed(2) + " dB" : "-");
  plain("steps", ["step", "before", "after", "", "note"], report.steps.map((s) => [s.name, errorDb(s.before), errorDb(s.after), s.kept ? "kept" : "dropped", s.note]));
  if (report.goal) {
    by("goal").querySelector("p").textContent = report.goal.goal + (report.goal.met ? " met: " : " missed: ") + entry.goal;
    plain("goal", ["strategy", "what", report.goal.figure, "margin", "time", "", "note"], report.goal.trials.map((t) => [t.strategy, t.what, brief(t.value), known(t.margin_db) ? t.margin_db.toFixed(2) + " dB" : "-", t.seconds.toFixed(1) + " s", t.outcome, t.note]));
  }
  plain("floats", ["node", "operator", "why"], report.float_nodes.map((n) => [n.node, n.op_type, n.why]));
  plain("moved", ["tensor", "from", "to", "costs", "why"], report.adjustments.map((a) => [a.tensor, brief(a.before), brief(a.after), known(a.cost_db) ? a.cost_db.toFixed(2) + " dB" : "-", a.why]));
  if (report.latency) {
    by("latency").hidden = false;
    by("latency").querySelector("p").textContent = report.latency.verdict;
    plain("latency", ["operator", "count", "why it runs in float", "nodes"], report.latency.unfused.map((u) => [u.op_type, String(u.count), u.why, u.nodes.slice(0, 6).join(", ") + (u.nodes.length > 6 ? " ..." : "")]));
  }
  by("command").textContent = page.command;
  // ---- several models side by side
  if (page.reports.length > 1) {
    by("models").hidden = false;
    const figures = (one) => {
      const rows = one.slices.length ? one.slices : one.outputs, low = rows.map((row) => row.sqnr_db).filter(known);
      return [one.verdict ? one.verdict.level : "", low.length ? low.reduce((a, b) => Math.min(a, b)).toFixed(2) + " dB" : "exact", one.accuracy.map((row) => row.name + " " + brief(row.quantized_score) + " " + row.unit).join(", "), one.size_after ? size(one.size_after) : "", one.latency ? one.latency.quantized_ms.toFixed(2) + " ms" : ""];
    };
    const heads = ["model", "preset", "verdict", "SQNR", "accuracy", "constants", "time"];
    const all = page.reports.map((one) => [one.title, one.report.preset, ...figures(one.report)]);
    const used = heads.map((_, column) => column < 2 || all.some((row) => row[column]));
    by("models").querySelector(".scroll").append(make("table", {}, make("thead", {}, make("tr", {}, ...heads.filter((_, c) => used[c]).map((text) => make("th", { scope: "col", textContent: text })))),
      make("tbody", {}, ...all.map((row, index) => {
        const button = make("button", { className: "open", type: "button", textContent: row[0] });
        button.addEventListener("click", () => { showReport(index); document.querySelector("#models button[aria-current]").focus(); });
        if (index === number) button.setAttribute("aria-current", "true");
        const line = make("tr", {}, make("td", { className: "name" }, button), ...row.slice(1).filter((_, c) => used[c + 1]).map((text) => make("td", { textContent: text })));
        line.setAttribute("aria-selected", index === number);
        return line;
      }))));
  }
  plain("again", ["what", "version"], Object.entries(page.versions));

  // ---- samples: classes, boxes or images of both models
  const pictured = (address, boxes, alt) => {
    const frame = make("div", { className: boxes ? "picture boxed" : "picture" }, make("img", { src: address, alt }));
    for (const [left, top, right, bottom, score, label] of boxes ?? []) {
      const box = make("i", { title: "class " + label + ", " + percent(score, 0) }, make("span", { textContent: label + " · " + score.toFixed(2) }));
      const part = (value) => 100 * Math.max(0, Math.min(1, value));
      Object.assign(box.style, { left: part(left) + "%", top: part(top) + "%", width: part(right) - part(left) + "%", height: part(bottom) - part(top) + "%" });
      frame.append(box);
    }
    return frame;
  };
  const bars = (classes, others) => make("ol", {}, ...classes.map(([label, chance], at) => {
    const bar = make("i"); bar.style.width = 100 * chance + "%";
    const row = make("li", {}, make("span", { textContent: "class " + label }), make("span", { className: "track" }, bar), make("span", { className: "number", textContent: percent(chance) }));
    if (others && at === 0 && others[0] && others[0][0] !== label) row.className = "loss";
    return row;
  }));
  const column = (title, ...inside) => make("figure", {}, make("figcaption", { textContent: title }), ...inside);
  report.samples.forEach((sample, index) => {
    const card = make("div", { className: "sample" });
    if (sample.float_boxes) {
      card.append(column("float, " + countBoxes(sample.float_boxes), pictured(sample.image, sample.float_boxes, "sample " + (index + 1) + " with the boxes of the float model")),
        column("quantized, " + countBoxes(sample.quantized_boxes), pictured(sample.image, sample.quantized_boxes, "the same with the boxes of the quantized model")));
    } else {
      if (sample.image) card.append(column("sample " + (index + 1), pictured(sample.image, null, "sample " + (index + 1))));
      for (const one of sample.outputs) card.append(
        column("float: " + one.name, one.float_image ? pictured(one.float_image, null, "output of the float model") : bars(one.float_classes)),
        column("quantized: " + one.name, one.quantized_image ? pictured(one.quantized_image, null, "output of the quantized model") : bars(one.quantized_classes, one.float_classes)));
    }
    by("samples").querySelector(".samples").append(card);
  });
  if (report.samples.length) {
    by("samples").hidden = false;
    by("samples").querySelector(".how").textContent = report.samples[0].float_boxes ? "Boxes of a score over 25 %, overlapping ones of a class removed. Numbers are classes and scores." : "The outputs of both models for the first samples.";
  }

  // ---- the budget
  if (report.budget) {
    const budget = report.budget;
    by("budget").hidden = false;
    by("budget").querySelector(".how").textContent = "Sensitivity: noise of the outputs with only this tensor quantized, as a share of all noise, at " + db(budget.sqnr_db) + " dB on " + budget.samples + " samples. " +
      budget.measured + " tensors are measured, " + budget.estimated + " estimated (~).";
    const place = by("budget").querySelector(".rows");
    budget.rows.slice(0, 12).forEach((row, index) => {
      const inFloat = known(row.recovered) ? "if in float: noise " + (Math.abs(row.recovered) < 0.0005 ? "" : row.recovered > 0 ? "-" : "+") + percent(Math.abs(row.recovered)) : "";
      const name = make("span", { className: "name", textContent: (index + 1) + ". " + calledBy(row) });
      place.append(make("details", { open: index < 2 }, make("summary", {}, name, make("span", { className: "number", textContent: (row.samples ? "" : "~") + percent(row.sensitivity) }), make("span", { className: "quiet", textContent: row.causes.map((c) => c.name).join(", ") })),
        row.node ? make("div", { className: "quiet", textContent: row.tensor }) : null,
        ...row.causes.map((c) => make("div", {}, make("b", { textContent: c.name }), ": " + c.detail)),
        inFloat ? make("div", { className: "quiet", textContent: inFloat }) : null,
        ...row.suggested_fixes.map((fix) => {
          const helps = !known(fix.gain_db) || fix.gain_db > 0, gain = known(fix.gain_db) ? (helps ? "+" : "") + fix.gain_db.toFixed(2) + " dB" : "exact";
          return make("div", {}, (helps ? "suggested fix: " : "tried without gain: ") + fix.what + ": ", make("span", { className: helps ? "gain" : "loss", textContent: gain }), helps ? make("code", { className: "line", textContent: fix.config }) : null);
        })));
    });
    for (const promotion of [budget.region, budget.promotion].filter(Boolean).sort((a, b) => b.gain_db - a.gain_db)) place.append(make("p", {}, make("b", { textContent: "T" + promotion.words.slice(1) + ", measured together: " }), db(budget.sqnr_db) + " → " + db(promotion.sqnr_db) + " dB, " + (promotion.gain_db > 0 ? percent(promotion.noise_recovered, 0) + " of the noise recovered." : "no help.") + (known(promotion.requantized_sqnr_db) ? " Quantized again so: " + db(promotion.requantized_sqnr_db) + " dB." : ""), promotion.gain_db > 0 || known(promotion.requantized_sqnr_db) ? make("code", { className: "line", textContent: promotion.config }) : null));
  }
  // ---- every command and every line of a configuration can be copied
  for (const text of document.querySelectorAll("pre, code.line")) {
    const button = make("button", { type: "button", className: "copy", textContent: "copy" });
    button.setAttribute("aria-label", "copy " + text.textContent.slice(0, 40));
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(text.textContent); } catch {
        // A page from a file may not have the clipboard: select and copy as one would by hand.
        const range = document.createRange(); range.selectNodeContents(text);
        const selection = getSelection(); selection.removeAllRanges(); selection.addRange(range);
        document.execCommand("copy");
      }
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    const holder = make("div", { className: "copyable" });
    text.replaceWith(holder);
    holder.append(text, button);
  }
  for (const section of document.querySelectorAll("main section:not([hidden])")) {
    const head = section.querySelector("h2");
    if (head && section.id !== "detail") document.querySelector("nav").append(make("a", { href: "#" + section.id, textContent: head.textContent }));
  }

  const drawAll = () => {
    if (drawing) drawing.refresh();
    drawLayers();
    if (report.budget && report.budget.rows.length) drawBudget();
    const first = selected ?? (report.budget && report.budget.rows.find((row) => views.has(row.tensor))?.tensor) ?? report.tensors[0]?.tensor;
    if (first) select(first, false);
  };
  drawAll();
  current = { drawAll, drawing };
  document.documentElement.dataset.drawn = plots.length;
  };
  showReport(0);
  let waiting = 0;
  addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => { if (current.drawing) current.drawing.refresh(); for (const plot of plots) plot.setSize({ width: Math.max(240, plot.root.parentElement.clientWidth), height: plot.height }); }); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => current.drawAll());
})();
