"use strict";
// Draws the pictures of a page from the JSON that stands in them. No library and no network.
(() => {
  const NS = "http://www.w3.org/2000/svg";
  const phone = window.innerWidth < 700; // fewer units across, so that text stays readable
  const W = phone ? 520 : 1000, H = phone ? 360 : 420, LEFT = 64, RIGHT = 20, TOP = 34, BOTTOM = 46;
  const DASHES = ["", "8 4", "8 3 2 3", "2 3"];

  const make = (name, attributes, parent, text) => {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  };
  const html = (name, parent, text, attributes = {}) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.appendChild(node);
    return node;
  };
  const short = (value) => {
    const size = Math.abs(value);
    if (size >= 1e4) return value.toLocaleString("en", { maximumFractionDigits: 0 });
    return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
  };

  // Round places for labels: 1, 2 and 5 times powers of ten, or the powers themselves on a logarithmic axis.
  const ticks = (low, high, log, most) => {
    if (log) {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
        for (const factor of high / low < 50 ? [1, 2, 5] : [1]) {
          const value = factor * 10 ** power;
          if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
        }
      return found;
    }
    const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
    const found = [];
    for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step)
      found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
    return found;
  };
  const scale = (low, high, from, to, log) => {
    const of = log ? Math.log10 : (value) => value;
    const [a, b] = [of(low), of(high)];
    return (value) => from + ((of(value) - a) / (b - a || 1)) * (to - from);
  };

  function drawLines(figure, data) {
    const keys = Object.keys(data.xs);
    let key = keys[0];
    const hidden = new Set();
    const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": data.title }, figure);
    const controls = html("div", figure, undefined, { class: "controls" });
    const tip = html("div", figure, undefined, { class: "tip" });
    if (keys.length > 1) {
      const menu = html("select", controls, undefined, { "aria-label": "x axis" });
      for (const each of keys) html("option", menu, data.xs[each], { value: each });
      menu.addEventListener("change", () => { key = menu.value; draw(); });
    }
    data.series.forEach((line, index) => {
      const button = html("button", controls, undefined, { "aria-pressed": "true", type: "button" });
      const swatch = html("span", button, undefined, { class: "swatch" });
      swatch.style.borderTopColor = data.colours[index % data.colours.length];
      swatch.style.borderTopStyle = index % 4 === 0 ? "solid" : "dashed";
      button.append(line.name);
      button.addEventListener("click", () => {
        if (!hidden.delete(index)) hidden.add(index);
        button.setAttribute("aria-pressed", String(!hidden.has(index)));
        draw();
      });
    });

    function draw() {
      svg.replaceChildren();
      const logX = data.logX.includes(key);
      const shown = data.series.map((line, index) => ({ ...line.points[key], name: line.name, index }))
        .filter((line) => line.x && !hidden.has(line.index));
      const xs = shown.flatMap((line) => line.x).filter((x) => !logX || x > 0);
      const ys = shown.flatMap((line) => [...line.y, ...(line.low || []), ...(line.high || [])])
        .filter((y) => y !== null && (!data.logY || y > 0));
      make("text", { x: LEFT, y: 18, class: "title" }, svg, data.title);
      if (!xs.length || !ys.length) return;
      let [x0, x1] = [logX ? Math.min(...xs) : Math.min(0, ...xs), Math.max(...xs)];
      if (data.target !== null && data.target !== undefined) ys.push(data.target);
      let [y0, y1] = [Math.min(...ys), Math.max(...ys)];
      if (!data.logY) { const room = 0.04 * (y1 - y0 || 1); y0 -= room; y1 += room; }
      if (x0 === x1) x1 = x0 + 1;
      const px = scale(x0, x1, LEFT, W - RIGHT, logX), py = scale(y0, y1, H - BOTTOM, TOP, data.logY);
      for (const x of ticks(x0, x1, logX, phone ? 5 : 9)) {
        make("line", { x1: px(x), x2: px(x), y1: TOP, y2: H - BOTTOM, class: "grid" }, svg);
        make("text", { x: px(x), y: H - BOTTOM + 17, "text-anchor": "middle" }, svg, short(x));
      }
      for (const y of ticks(y0, y1, data.logY, 7)) {
        make("line", { x1: LEFT, x2: W - RIGHT, y1: py(y), y2: py(y), class: "grid" }, svg);
        make("text", { x: LEFT - 8, y: py(y) + 4, "text-anchor": "end" }, svg, short(y));
      }
      make("line", { x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM, class: "axis" }, svg);
      make("text", { x: (LEFT + W - RIGHT) / 2, y: H - 8, "text-anchor": "middle" }, svg, data.xs[key]);
      make("text", { x: 14, y: (TOP + H - BOTTOM) / 2, "text-anchor": "middle",
        transform: `rotate(-90 14 ${(TOP + H - BOTTOM) / 2})` }, svg, data.y);
      if (data.target !== null && data.target !== undefined)
        make("line", { x1: LEFT, x2: W - RIGHT, y1: py(data.target), y2: py(data.target), class: "axis",
          "stroke-dasharray": "2 4" }, svg);
      const clip = `plot-${Math.random().toString(36).slice(2)}`;
      make("rect", { x: LEFT, y: TOP, width: W - RIGHT - LEFT, height: H - BOTTOM - TOP },
        make("clipPath", { id: clip }, svg));
      const plot = make("g", { "clip-path": `url(#${clip})` }, svg);
      for (const line of shown) {
        const colour = data.colours[line.index % data.colours.length];
        const there = line.x.map((x, i) => i)
          .filter((i) => line.y[i] !== null && (!logX || line.x[i] > 0) && (!data.logY || line.y[i] > 0));
        if (line.low) {
          const up = there.map((i) => `${px(line.x[i])},${py(line.high[i])}`);
          const down = [...there].reverse().map((i) => `${px(line.x[i])},${py(line.low[i])}`);
          make("polygon", { points: [...up, ...down].join(" "), fill: colour, opacity: 0.15 }, plot);
        }
        make("polyline", { points: there.map((i) => `${px(line.x[i])},${py(line.y[i])}`).join(" "), fill: "none",
          stroke: colour, "stroke-width": 2, "stroke-dasharray": DASHES[line.index % 4], "class": "series" }, plot);
      }
      const guide = make("line", { y1: TOP, y2: H - BOTTOM, class: "axis", visibility: "hidden" }, svg);
      svg.onmousemove = (event) => {
        const box = svg.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * W;
        const rows = [];
        let place = null;
        for (const line of shown) {
          let best = -1;
          line.x.forEach((x, i) => {
            if (logX && x <= 0) return;
            if (best < 0 || Math.abs(px(x) - at) < Math.abs(px(line.x[best]) - at)) best = i;
          });
          if (best < 0 || line.y[best] === null) continue;
          place = place === null || Math.abs(px(line.x[best]) - at) < Math.abs(px(place) - at) ? line.x[best] : place;
          rows.push(`${line.name}: ${short(line.y[best])} at ${short(line.x[best])}`);
        }
        if (place === null) return;
        guide.setAttribute("x1", px(place));
        guide.setAttribute("x2", px(place));
        guide.setAttribute("visibility", "visible");
        tip.textContent = rows.join("\n");
        tip.style.display = "block";
        const left = event.clientX - box.left + 14;
        tip.style.left = `${Math.min(left, box.width - tip.offsetWidth)}px`;
        tip.style.top = `${event.clientY - box.top + 14}px`;
      };
      svg.onmouseleave = () => { tip.style.display = "none"; guide.setAttribute("visibility", "hidden"); };
    }
    draw();
  }

  for (const figure of document.querySelectorAll("figure.picture"))
    drawLines(figure, JSON.parse(figure.querySelector("script").textContent));
  for (const table of document.querySelectorAll("table.sortable")) {
    table.querySelectorAll("th").forEach((heading, column) => heading.addEventListener("click", () => {
      const down = heading.dataset.order !== "down";
      table.querySelectorAll("th").forEach((other) => delete other.dataset.order);
      heading.dataset.order = down ? "down" : "up";
      const value = (line) => {
        const cell = line.children[column].textContent, number = parseFloat(cell.replace(/,/g, ""));
        return Number.isNaN(number) ? cell : number;
      };
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        const order = typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? -1 : 1;
        return down ? order : -order;
      });
      table.tBodies[0].append(...rows);
    }));
  }
  document.body.dataset.drawn = "yes"; // for the test that looks at the page
})();
