"use strict";
// The network, drawn: blocks that unfold, coloured by error. Each block is laid out by itself (dagre),
// so that a network of any size costs no more than the blocks that are open.
const drawNetwork = (network, place, facts) => {
  const [NAME, OPERATOR, TENSOR, INPUTS, WEIGHTS, FORMAT, QUANTIZED] = [0, 1, 2, 3, 4, 5, 6];
  const nodes = network.nodes;
  const canvas = place.querySelector("canvas"), tip = place.querySelector(".tip"), says = place.querySelector(".says");
  const context = canvas.getContext("2d");
  const known = (value) => typeof value === "number" && Number.isFinite(value);
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const WIDTH = 200, HEIGHT = 40, PAD = 18, HEAD = 26;

  // ---- what is drawn: blocks of blocks, and nodes at the bottom
  const consumers = nodes.map(() => []);
  nodes.forEach((node, index) => { for (const input of node[INPUTS]) consumers[input].push(index); });
  const makeBlock = ([title, start, end, blocks = []], parent) => {
    const block = { title, start, end, parent, open: false, layout: null, items: null };
    block.items = blocks.length ? blocks.map((inner) => makeBlock(inner, block))
      : Array.from({ length: end - start }, (_, i) => ({ node: start + i, start: start + i, end: start + i + 1, parent: block }));
    const measured = nodes.slice(start, end).map((node) => facts.of(node[TENSOR], node[WEIGHTS]));
    const ratios = measured.map((fact) => fact.sqnr).filter(known), shares = measured.map((fact) => fact.sensitivity).filter(known);
    block.common = new Map();
    for (const inner of blocks) for (const part of new Set(inner[0].split("/"))) block.common.set(part, (block.common.get(part) ?? 0) + 1);
    block.sqnr = ratios.length ? ratios.reduce((a, b) => Math.min(a, b)) : null;
    block.sensitivity = shares.length ? shares.reduce((a, b) => a + b) : null;
    block.float = nodes.slice(start, end).filter((node) => !node[QUANTIZED]).length;
    return block;
  };
  const root = makeBlock(network.root, null);
  root.open = true;
  const itemOf = (block, node) => {
    let low = 0, high = block.items.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (block.items[middle].start <= node) low = middle; else high = middle - 1; }
    return low;
  };

  // ---- layout of one block: its items, and dots where tensors enter and leave
  const sizeOf = (item) => {
    if (!item.open) return { width: WIDTH, height: HEIGHT };
    const inner = layoutOf(item);
    return { width: inner.width + 2 * PAD, height: inner.height + HEAD + PAD };
  };
  const layoutOf = (block) => {
    if (block.layout) return block.layout;
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ nodesep: 22, edgesep: 10, ranksep: 18, ranker: block.items.length > 60 ? "longest-path" : "network-simplex" });
    graph.setDefaultEdgeLabel(() => ({}));
    block.items.forEach((item, index) => graph.setNode(String(index), sizeOf(item)));
    const sources = new Map();
    const join = (from, to, node, consumer) => { graph.setEdge(from, to); if (!sources.has(from + " " + to)) sources.set(from + " " + to, [node, consumer]); };
    for (let node = block.start; node < block.end; node += 1) {
      const own = String(itemOf(block, node));
      for (const input of nodes[node][INPUTS]) {
        const inside = input >= block.start;
        const from = inside ? String(itemOf(block, input)) : "in" + input;
        if (!inside && block !== root) graph.setNode(from, { width: 6, height: 6 });
        if (from !== own && (inside || block !== root)) join(from, own, input, node);
      }
      if (block !== root && consumers[node].some((consumer) => consumer >= block.end)) {
        graph.setNode("out" + node, { width: 6, height: 6 });
        join(own, "out" + node, node, consumers[node][consumers[node].length - 1]);
      }
    }
    dagre.layout(graph);
    block.items.forEach((item, index) => {
      const at = graph.node(String(index));
      Object.assign(item, { x: at.x - at.width / 2, y: at.y - at.height / 2, width: at.width, height: at.height });
    });
    // Between two nodes that the target runs as one there is no Q/DQ pair, and no float either.
    const inIntegers = ([from, to]) => nodes[from][FORMAT] !== "" || (nodes[from][QUANTIZED] && nodes[to][QUANTIZED]);
    const edges = graph.edges().map((edge) => ({ points: graph.edge(edge).points, quantized: inIntegers(sources.get(edge.v + " " + edge.w)) }));
    const dots = graph.nodes().filter((name) => name.startsWith("in") || name.startsWith("out")).map((name) => graph.node(name));
    const { width, height } = graph.graph();
    block.layout = { edges, dots, width: Math.max(width, WIDTH), height };
    return block.layout;
  };
  const forget = (block) => { for (let at = block; at; at = at.parent) at.layout = null; };
  const toggle = (block, open = !block.open) => { block.open = open; forget(block.parent ?? block); };

  // ---- colours: red for much error, blue for little (ColorBrewer's RdYlBu, safe for the colour-blind)
  const stops = [[215, 48, 39], [252, 141, 89], [254, 224, 144], [145, 191, 219], [69, 117, 180]];
  const shade = (part) => {
    const at = Math.min(3.999, Math.max(0, 4 * part)), low = Math.floor(at), mix = at - low;
    return stops[low].map((value, i) => Math.round(value + mix * (stops[low + 1][i] - value)));
  };
  let colouring = "sqnr";
  const partOf = (fact) => {
    if (colouring === "sqnr") return known(fact.sqnr) ? (fact.sqnr - 5) / 40 : null;
    return known(fact.sensitivity) ? -Math.log10(Math.max(fact.sensitivity, 1e-5)) / 4 : null;
  };
  const factOf = (item) => (item.node === undefined ? item : facts.of(nodes[item.node][TENSOR], nodes[item.node][WEIGHTS]));
  const isFloat = (item) => (item.node === undefined ? item.float === item.end - item.start : !nodes[item.node][QUANTIZED]);

  // ---- drawing
  let view = { scale: 1, x: 0, y: 0 }, chosen = null, waiting = 0, theme = {};
  const refresh = () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(paint); };
  // Names are paths, whose ends tell them apart: as much of the end as fits, from a part on if it can be.
  const cut = (text, width, lead = "") => {
    const fits = (words) => context.measureText(lead + words).width <= width;
    if (fits(text)) return lead + text;
    let from = 1;
    while (from < text.length - 1 && !fits("…" + text.slice(from))) from += 1;
    const part = text.indexOf("/", from);
    return lead + "…" + text.slice(part >= 0 && part < text.length - 6 ? part : from);
  };
  // Of a block's title the parts go first that most blocks beside it have as well; its last part stays.
  const cutTitle = (block, width, lead) => {
    const fits = (words) => context.measureText(lead + words).width <= width;
    const parts = block.title.split("/"), common = block.parent.common;
    const joined = () => parts.join("/").replace(/…(\/…)+/g, "…");
    while (!fits(joined()) && parts.slice(0, -1).some((part) => part !== "…")) {
      const most = Math.max(...parts.slice(0, -1).map((part) => common.get(part) ?? 0));
      parts[parts.findIndex((part) => part !== "…" && (common.get(part) ?? 0) === most)] = "…";
    }
    return cut(joined(), width, lead);
  };
  const paint = () => {
    const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); }
    theme = Object.fromEntries(["paper", "ground", "ink", "quiet", "line", "accent"].map((name) => [name, style(name)]));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.setTransform(ratio * view.scale, 0, 0, ratio * view.scale, ratio * view.x, ratio * view.y);
    const window_ = { left: -view.x / view.scale, top: -view.y / view.scale, right: (width - view.x) / view.scale, bottom: (height - view.y) / view.scale };
    canvas.dataset.painted = paintBlock(root, 0, 0, window_);
  };
  const paintBlock = (block, left, top, seen) => {
    const layout = layoutOf(block);
    let painted = 0;
    context.lineWidth = 1.4;
    for (const edge of layout.edges) {
      const first = edge.points[0], last = edge.points[edge.points.length - 1];
      if (top + last.y < seen.top || top + first.y > seen.bottom) continue;
      context.strokeStyle = edge.quantized ? theme.accent : theme.quiet;
      context.setLineDash(edge.quantized ? [] : [4, 3]);
      context.beginPath();
      context.moveTo(left + first.x, top + first.y);
      for (let i = 1; i < edge.points.length - 1; i += 1) {
        const a = edge.points[i], b = edge.points[i + 1];
        context.quadraticCurveTo(left + a.x, top + a.y, left + (a.x + b.x) / 2, top + (a.y + b.y) / 2);
      }
      context.lineTo(left + last.x, top + last.y);
      context.stroke();
    }
    context.setLineDash([]);
    context.fillStyle = theme.quiet;
    for (const dot of layout.dots) { context.beginPath(); context.arc(left + dot.x, top + dot.y, 3, 0, 7); context.fill(); }
    for (const item of block.items) {
      const x = left + item.x, y = top + item.y;
      if (x > seen.right || y > seen.bottom || x + item.width < seen.left || y + item.height < seen.top) continue;
      painted += 1;
      if (item.open) painted += paintOpen(item, x, y, seen); else paintItem(item, x, y);
    }
    return painted;
  };
  const outline = (item, x, y, width, height) => {
    context.setLineDash(isFloat(item) ? [5, 3] : []);
    context.lineWidth = item === chosen ? 3 : 1.2;
    context.strokeStyle = item === chosen ? theme.accent : theme.quiet;
    context.beginPath();
    context.roundRect(x, y, width, height, item.node === undefined ? 9 : 4);
    context.fill();
    context.stroke();
    context.setLineDash([]);
  };
  const paintOpen = (block, x, y, seen) => {
    context.fillStyle = theme.ground;
    outline(block, x, y, block.width, block.height);
    if (view.scale > 0.35) {
      context.fillStyle = theme.quiet;
      context.font = "600 12px system-ui, sans-serif";
      context.fillText(cutTitle(block, block.width - 20, "− "), x + 10, y + 17);
    }
    return paintBlock(block, x + PAD, y + HEAD, seen);
  };
  const paintItem = (item, x, y) => {
    const part = partOf(factOf(item)), plain = part === null || isFloat(item);
    const rgb = plain ? null : shade(part);
    context.fillStyle = rgb ? "rgb(" + rgb.join(",") + ")" : theme.paper;
    if (item.node === undefined) { // a second sheet below: there is more inside
      outline(item, x + 4, y + 4, item.width - 4, item.height - 4);
      outline(item, x, y, item.width - 4, item.height - 4);
    } else outline(item, x, y, item.width, item.height);
    if (view.scale < 0.35) return;
    const light = rgb ? 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2] > 140 : false;
    context.fillStyle = rgb ? (light ? "#111" : "#fff") : theme.ink;
    const [above, below, lead] = labels(item);
    context.font = "600 12px system-ui, sans-serif";
    context.fillText(item.node === undefined ? cutTitle(item, item.width - 18, lead) : cut(above, item.width - 18), x + 8, y + 16);
    if (view.scale < 0.55) return;
    context.font = "11px system-ui, sans-serif";
    context.fillText(cut(below, item.width - 18), x + 8, y + 31);
  };
  const ratio_ = (value, digits) => (value >= facts.exact ? "exact" : value.toFixed(digits) + " dB");
  const figure = (fact) => (colouring === "sqnr" ? (known(fact.sqnr) ? ratio_(fact.sqnr, 1) : "") : known(fact.sensitivity) ? (100 * fact.sensitivity).toPrecision(2) + " %" : "");
  const labels = (item) => {
    const value = figure(factOf(item));
    if (item.node === undefined) return [item.title, (item.end - item.start) + " nodes" + (value ? ", " + value : "") + (isFloat(item) ? ", float" : item.float ? ", " + item.float + " float" : ""), "+ "];
    const node = nodes[item.node];
    return [node[OPERATOR] + (value ? "  " + value : "") + (node[QUANTIZED] ? "" : "  float"), node[NAME]];
  };
  const describe = (item) => {
    if (item.node === undefined) return item.title + ": " + labels(item)[1].replace(/[\d.]+ dB/, "worst $&");
    const node = nodes[item.node], fact = factOf(item);
    return [node[OPERATOR] + " " + node[NAME], "output " + node[TENSOR] + (node[FORMAT] ? " in " + node[FORMAT] : node[QUANTIZED] ? "" : ", in float"),
      known(fact.sqnr) ? "SQNR " + ratio_(fact.sqnr, 2) : "", known(fact.sensitivity) ? "sensitivity " + (100 * fact.sensitivity).toPrecision(3) + " %" : ""].filter(Boolean).join("\n");
  };

  // ---- finding what is where
  const at = (x, y) => {
    let block = root, left = 0, top = 0, hit = null;
    for (;;) {
      const inner = block.items.find((item) => x >= left + item.x && x <= left + item.x + item.width && y >= top + item.y && y <= top + item.y + item.height);
      if (!inner) return hit;
      hit = inner;
      if (!inner.open) return hit;
      left += inner.x + PAD; top += inner.y + HEAD; block = inner;
    }
  };
  const cornerOf = (item) => {
    let x = item.x, y = item.y;
    for (let block = item.parent; block && block !== root; block = block.parent) { x += block.x + PAD; y += block.y + HEAD; }
    return { x, y };
  };
  const pointed = (event) => {
    const box = canvas.getBoundingClientRect();
    return { px: event.clientX - box.left, py: event.clientY - box.top, x: (event.clientX - box.left - view.x) / view.scale, y: (event.clientY - box.top - view.y) / view.scale };
  };

  // ---- moving about
  const zoom = (factor, px = canvas.clientWidth / 2, py = canvas.clientHeight / 2) => {
    const scale = Math.min(3, Math.max(0.02, view.scale * factor)), real = scale / view.scale;
    view = { scale, x: px - (px - view.x) * real, y: py - (py - view.y) * real };
    refresh();
  };
  const fit = (least = 0) => {
    const { width, height } = layoutOf(root);
    const scale = Math.min(1.2, Math.max(least, Math.min(canvas.clientWidth / (width + 30), canvas.clientHeight / (height + 30))));
    view = { scale, x: (canvas.clientWidth - width * scale) / 2, y: least && height * scale > canvas.clientHeight ? 14 : (canvas.clientHeight - height * scale) / 2 };
    refresh();
  };
  const centre = (item) => {
    layoutOf(root);
    const { x, y } = cornerOf(item), scale = Math.max(view.scale, 0.7);
    view = { scale, x: canvas.clientWidth / 2 - (x + item.width / 2) * scale, y: canvas.clientHeight / 2 - (y + item.height / 2) * scale };
    refresh();
  };
  const choose = (item, tell = true) => {
    chosen = item;
    says.textContent = item ? describe(item) : "";
    if (item && item.node !== undefined && tell) facts.select(nodes[item.node][TENSOR]);
    refresh();
  };
  const visible = (item) => {
    // What is in a folded block is shown by the outermost one that is folded.
    let shown = item;
    for (let block = item.parent; block; block = block.parent) if (!block.open) shown = block;
    return shown;
  };
  const deepest = (node) => {
    let block = root;
    for (;;) { const item = block.items[itemOf(block, node)]; if (item.node !== undefined) return item; block = item; }
  };
  const reveal = (node) => {
    const item = deepest(node);
    for (let block = item.parent; block; block = block.parent) if (!block.open) toggle(block, true);
    centre(item);
    choose(item, false);
  };
  const press = (item) => {
    choose(item);
    if (item.node !== undefined) return;
    const before = cornerOf(item);
    toggle(item);
    layoutOf(root);
    const after = cornerOf(item); // the block stays under the pointer
    view.x += (before.x - after.x) * view.scale; view.y += (before.y - after.y) * view.scale;
  };
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, y: event.clientY, view, moved: false }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
      drag.moved = drag.moved || Math.hypot(dx, dy) > 4;
      if (drag.moved) { view = { ...drag.view, x: drag.view.x + dx, y: drag.view.y + dy }; tip.hidden = true; refresh(); }
      return;
    }
    const place_ = pointed(event), item = at(place_.x, place_.y);
    tip.hidden = !item;
    canvas.style.cursor = item ? "pointer" : "grab";
    if (item) { tip.textContent = describe(item); tip.style.left = Math.min(place_.px + 14, canvas.clientWidth - 260) + "px"; tip.style.top = place_.py + 16 + "px"; }
  });
  canvas.addEventListener("pointerup", (event) => {
    const still = drag && !drag.moved;
    drag = null;
    if (!still) return;
    const { x, y } = pointed(event), item = at(x, y);
    if (item) press(item); else choose(null);
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("wheel", (event) => {
    // The page scrolls unless the drawing has been clicked on, so that nobody is caught in it.
    if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const { px, py } = pointed(event);
    zoom(Math.exp(-event.deltaY / 400), px, py);
  }, { passive: false });
  const neighbour = (key) => {
    const item = chosen ?? root.items[0];
    const siblings = item.parent.items, index = siblings.indexOf(item);
    if (key === "ArrowLeft") return siblings[index - 1] ?? item.parent;
    if (key === "ArrowRight") return item.open ? item.items[0] : siblings[index + 1] ?? item.parent;
    if (key === "ArrowDown") { for (let node = item.start; node < item.end; node += 1) { const next = consumers[node].find((c) => c >= item.end); if (next !== undefined) return visible(deepest(next)); } return item; }
    for (let node = item.start; node < item.end; node += 1) { const last = nodes[node][INPUTS].find((p) => p < item.start); if (last !== undefined) return visible(deepest(last)); }
    return item;
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    if (key.startsWith("Arrow")) { const next = neighbour(key); if (next !== root) { choose(next, false); centre(next); } }
    else if ((key === "Enter" || key === " ") && chosen) press(chosen);
    else if (key === "+" || key === "=") zoom(1.3);
    else if (key === "-") zoom(1 / 1.3);
    else if (key === "0") fit();
    else if (key === "Escape" && chosen && chosen.parent && chosen.parent !== root) { const outer = chosen.parent; toggle(outer, false); choose(outer, false); }
    else return;
    event.preventDefault();
  });
  const blocks = [];
  const collect = (block) => { for (const item of block.items) if (item.node === undefined) { blocks.push(item); collect(item); } };
  collect(root);
  const MANY = 1500;
  const act = {
    closer: () => zoom(1.4), farther: () => zoom(1 / 1.4), fit: () => fit(),
    unfold: () => { for (const block of blocks) block.open = true; for (const block of [root, ...blocks]) block.layout = null; fit(0.56); },
    fold: () => { for (const block of blocks) block.open = false; for (const block of [root, ...blocks]) block.layout = null; choose(null); fit(0.75); },
    worst: () => {
      const order = nodes.map((node, index) => [index, facts.of(node[TENSOR], node[WEIGHTS])]).filter(([, fact]) => known(fact[colouring]));
      order.sort(([, a], [, b]) => (colouring === "sqnr" ? a.sqnr - b.sqnr : b.sensitivity - a.sensitivity));
      if (order.length) { reveal(order[0][0]); facts.select(nodes[order[0][0]][TENSOR]); }
    },
  };
  for (const [name, run] of Object.entries(act)) {
    const button = place.querySelector("[data-act=" + name + "]");
    button.addEventListener("click", run);
    if (name === "unfold" && nodes.length > MANY) button.hidden = true;
  }
  const explain = () => {
    const [most, least] = colouring === "sqnr" ? ["much error: 5 dB", "little: 45 dB"] : ["sensitive: all of the noise", "not: 0.01 %"];
    place.querySelector(".most").textContent = most; place.querySelector(".least").textContent = least;
  };
  explain();
  place.querySelector("select").addEventListener("change", (event) => { colouring = event.target.value; explain(); refresh(); });
  const search = place.querySelector("input");
  let found = -1;
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const word = search.value.toLowerCase(), has = (node) => (node[NAME] + " " + node[TENSOR] + " " + node[OPERATOR]).toLowerCase().includes(word);
    const after = nodes.findIndex((node, index) => index > found && has(node));
    found = after >= 0 ? after : nodes.findIndex(has);
    if (found >= 0) reveal(found); else says.textContent = "no node is called " + search.value;
  });
  if (nodes.length <= 60) act.unfold();
  fit(0.75);
  // Milliseconds that so many frames take while the view moves, for tests of large networks.
  const measure = (frames) => { const start = performance.now(); for (let i = 0; i < frames; i += 1) { view = { ...view, y: view.y - 5 }; paint(); } return performance.now() - start; };
  return { refresh, measure, reveal: (tensor) => { const node = nodes.findIndex((row) => row[TENSOR] === tensor || row[WEIGHTS].includes(tensor)); if (node >= 0) { choose(visible(deepest(node)), false); } }, state: () => ({ ...view, open: blocks.filter((block) => block.open).length, chosen: chosen && chosen.title }) };
};
