// Attention weights as pictures: lines between words, as in figures 3 to 5 of the paper, or a heat map for each head.
//
// drawAttention(element, data) fills an element with selectors and the picture; what was in it before is replaced.
// `data.source` and `data.target` are lists of tokens, shown as they are; `data.encoder`, `data.decoder` and `data.cross`
// are nested arrays layers x heads x query x key. It needs no style sheet, no other script and no network, and sets text
// as text only, so that no token can become markup.
function drawAttention(element, data) {
  // As figures.py and weights.py have them, in JSON: a test reads these three lines, and compares.
  const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666", "#b8a900"];
  const KINDS = { "encoder": "encoder self", "decoder": "decoder self", "cross": "cross" };
  const LEAST = 0.04;
  const SIDES = {
    encoder: { query: data.source, key: data.source },
    decoder: { query: data.target, key: data.target },
    cross: { query: data.target, key: data.source },
  };
  const VIEWS = { lines: "lines", maps: "heat maps" };
  const FONT = "13px system-ui, sans-serif";
  const shown = { kind: "encoder", layer: 0, heads: new Set(), view: "lines" };

  const html = (name, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(name), properties);
    node.append(...children);
    return node;
  };
  const svg = (name, attributes = {}, text = "") => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  };
  const color = (head) => COLORS[head % COLORS.length];
  const ruler = document.createElement("canvas").getContext("2d");
  const width = (tokens) => {
    ruler.font = `bold ${FONT}`; // a token under the pointer is bold
    return Math.ceil(Math.max(...tokens.map((token) => ruler.measureText(token).width)));
  };
  const canvas = (across, down) => {
    const node = svg("svg", { width: across, height: down, viewBox: `0 0 ${across} ${down}`, role: "img" });
    node.style.font = FONT;
    node.style.cursor = "default";
    node.style.flex = "none";
    return node;
  };

  const picture = html("div", { className: "attention-picture" });
  Object.assign(picture.style, { display: "flex", flexWrap: "wrap", gap: "1rem", overflowX: "auto" });
  const readout = html("p", { className: "attention-readout" });
  Object.assign(readout.style, { minHeight: "3em", margin: ".5rem 0" });

  // The words that a token, the query or key of this number, has most to do with, in the mean over the heads shown.
  function describe(weights, side, number) {
    const { query, key } = SIDES[shown.kind];
    const [tokens, others] = side === "query" ? [query, key] : [key, query];
    const mean = others.map((_, other) => {
      const [q, k] = side === "query" ? [number, other] : [other, number];
      return [...shown.heads].reduce((sum, head) => sum + weights[head][q][k], 0) / shown.heads.size;
    });
    const order = mean.map((_, other) => other).sort((a, b) => mean[b] - mean[a]).slice(0, 5);
    const words = order.filter((other) => mean[other] >= LEAST).map((other) => `${others[other]} ${mean[other].toFixed(2)}`);
    return `${tokens[number]} ${side === "query" ? "attends to" : "is attended to by"}: ${words.join(", ")}`;
  }

  function drawLines(weights) {
    const { query, key } = SIDES[shown.kind];
    const [row, gap, pad] = [20, 200, 6];
    const left = width(query) + pad, right = left + gap;
    const y = (number) => row * (number + 0.5);
    const node = canvas(right + width(key) + pad, row * Math.max(query.length, key.length));
    const heads = [...shown.heads].sort((a, b) => a - b);
    const lines = [];
    heads.forEach((head, rank) => {
      const shift = (rank - (heads.length - 1) / 2) * Math.min(2, 12 / heads.length); // heads lie beside each other
      weights[head].forEach((keys, q) => keys.forEach((weight, k) => {
        if (weight < LEAST) return;
        const ends = { x1: left + pad, y1: y(q) + shift, x2: right - pad, y2: y(k) + shift };
        const line = svg("line", { ...ends, stroke: color(head), "stroke-width": 2, "stroke-opacity": weight });
        lines.push({ line, q, k, weight });
        node.append(line);
      }));
    });
    const labels = { query: [], key: [] };
    const focus = (side, number) => {
      const near = { query: new Array(query.length).fill(0), key: new Array(key.length).fill(0) };
      for (const { line, q, k, weight } of lines) {
        const visible = side === null || (side === "query" ? q : k) === number;
        line.style.display = visible ? "" : "none";
        if (visible) [near.query[q], near.key[k]] = [Math.max(near.query[q], weight), Math.max(near.key[k], weight)];
      }
      for (const place of ["query", "key"]) labels[place].forEach((label, other) => {
        const self = place === side && other === number;
        label.style.fontWeight = self ? "bold" : "";
        label.style.opacity = side === null || self ? 1 : 0.3 + 0.7 * near[place][other];
      });
      readout.textContent = side === null || !heads.length ? "" : describe(weights, side, number);
    };
    for (const [side, tokens] of [["query", query], ["key", key]]) tokens.forEach((token, number) => {
      const [x, anchor] = side === "query" ? [left, "end"] : [right, "start"];
      const look = { x, y: y(number), "text-anchor": anchor, "dominant-baseline": "central", fill: "currentColor" };
      const label = svg("text", look, token);
      label.addEventListener("pointerenter", () => focus(side, number));
      label.addEventListener("pointerleave", () => focus(null, 0));
      labels[side].push(label);
      node.append(label);
    });
    picture.append(node);
  }

  function drawMap(weights, head) {
    const { query, key } = SIDES[shown.kind];
    const [cell, pad] = [16, 6];
    const left = width(query) + pad, top = width(key) + pad + 20;
    const node = canvas(left + cell * key.length + 1, top + cell * query.length + 1);
    node.append(svg("text", { x: 0, y: 12, fill: color(head), "font-weight": "bold" }, `head ${head + 1}`));
    const frame = { x: left, y: top, width: cell * key.length, height: cell * query.length };
    node.append(svg("rect", { ...frame, fill: "none", stroke: "currentColor", "stroke-opacity": 0.3 }));
    weights[head].forEach((keys, q) => keys.forEach((weight, k) => {
      const place = { x: left + cell * k, y: top + cell * q, width: cell, height: cell };
      if (weight >= LEAST) node.append(svg("rect", { ...place, fill: color(head), "fill-opacity": weight }));
    }));
    const rows = query.map((token, q) => svg("text", {
      x: left - pad, y: top + cell * (q + 0.5), "text-anchor": "end", "dominant-baseline": "central", fill: "currentColor",
    }, token));
    const columns = key.map((token, k) => svg("text", {
      transform: `translate(${left + cell * (k + 0.5)} ${top - pad}) rotate(-90)`, "dominant-baseline": "central",
      fill: "currentColor",
    }, token));
    const focus = (q, k) => {
      rows.forEach((label, number) => { label.style.fontWeight = number === q ? "bold" : ""; });
      columns.forEach((label, number) => { label.style.fontWeight = number === k ? "bold" : ""; });
      const [on, at] = [query[q], key[k]];
      if (on !== undefined && at !== undefined)
        readout.textContent = `head ${head + 1}: ${on} attends to ${at}: ${weights[head][q][k].toFixed(2)}`;
      else readout.textContent = on ?? at ? describe(weights, on !== undefined ? "query" : "key", on !== undefined ? q : k) : "";
    };
    node.addEventListener("pointermove", ({ clientX, clientY }) => {
      const box = node.getBoundingClientRect();
      focus(Math.floor((clientY - box.top - top) / cell), Math.floor((clientX - box.left - left) / cell));
    });
    node.addEventListener("pointerleave", () => focus(-1, -1));
    node.append(...rows, ...columns);
    picture.append(node);
  }

  function draw() {
    const weights = data[shown.kind][shown.layer];
    buttons.forEach((button, head) => {
      const on = shown.heads.has(head);
      button.ariaPressed = String(on);
      Object.assign(button.style, { background: on ? color(head) : "transparent", color: on ? "#fff" : color(head) });
    });
    picture.replaceChildren();
    readout.textContent = "";
    if (shown.view === "lines") drawLines(weights);
    else for (const head of [...shown.heads].sort((a, b) => a - b)) drawMap(weights, head);
  }

  function selector(label, key, options) {
    const select = html("select", {}, ...options.map(([value, text]) => html("option", { value }, text)));
    select.name = key;
    select.style.font = FONT;
    select.value = shown[key];
    select.addEventListener("change", () => { shown[key] = select.value; draw(); });
    return html("label", {}, `${label} `, select);
  }

  data.encoder[0].forEach((_, head) => shown.heads.add(head));
  const buttons = data.encoder[0].map((_, head) => {
    const button = html("button", { type: "button", title: "Click: show or hide; double click: this one alone" }, `${head + 1}`);
    Object.assign(button.style, {
      font: FONT, minWidth: "1.8rem", margin: "0 .1rem", cursor: "pointer", border: `1px solid ${color(head)}`,
    });
    button.addEventListener("click", () => { if (!shown.heads.delete(head)) shown.heads.add(head); draw(); });
    button.addEventListener("dblclick", () => { shown.heads = new Set([head]); draw(); });
    return button;
  });
  const controls = html(
    "div",
    { className: "attention-controls" },
    selector("attention", "kind", Object.entries(KINDS)),
    selector("layer", "layer", data.encoder.map((_, layer) => [layer, `${layer + 1}`])),
    selector("view", "view", Object.entries(VIEWS)),
    html("span", {}, "heads ", ...buttons),
  );
  Object.assign(controls.style, { display: "flex", flexWrap: "wrap", gap: ".4rem 1.2rem", alignItems: "center", font: FONT });
  element.replaceChildren(controls, readout, picture);
  draw();
}
