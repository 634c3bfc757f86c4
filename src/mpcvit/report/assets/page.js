(() => {
  "use strict";

  const SVG = "http://www.w3.org/2000/svg";
  const LETTER = 6.4; // width of a small letter in pixels, about
  const COLOURS = 8;

  const element = (name, attributes, parent, text) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };

  const shape = (name, attributes, parent, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };

  const colour = (hue) => (hue < 0 ? "var(--none)" : `var(--s${hue % COLOURS})`);

  const format = (value) =>
    Math.abs(value) >= 1000
      ? value.toLocaleString("en", { maximumFractionDigits: 0 })
      : String(Number(value.toPrecision(4)));

  const marker = (mark, x, y, r) => {
    const paths = [
      `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
      `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
      `M${x} ${y - 1.3 * r}L${x + 1.3 * r} ${y}L${x} ${y + 1.3 * r}L${x - 1.3 * r} ${y}z`,
      `M${x} ${y - 1.2 * r}L${x + 1.2 * r} ${y + r}H${x - 1.2 * r}z`,
      `M${x} ${y + 1.2 * r}L${x + 1.2 * r} ${y - r}H${x - 1.2 * r}z`,
    ];
    return paths[mark % paths.length];
  };

  // Round numbers that divide a range into about so many parts.
  const ticks = (low, high, count, whole) => {
    const rough = (high - low) / Math.max(1, count) || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    let step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
    if (whole) step = Math.max(1, Math.round(step));
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; at++) {
      found.push(Number((at * step).toPrecision(12)));
    }
    return found;
  };

  const overlap = (a, b) =>
    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

  // A chart in its figure: legend, drawing, what is told of each value.
  class Drawing {
    constructor(chart) {
      this.chart = chart;
      this.figure = document.getElementById(chart.id);
      this.plot = this.figure.querySelector(".plot");
      this.legend = this.figure.querySelector(".legend");
      this.spoken = this.figure.querySelector(".spoken");
      this.canvas = element("div", {}, this.plot);
      this.tip = element("div", { class: "tip", hidden: "" }, this.plot);
      this.off = new Set();
      this.spots = [];
      this.at = -1;
      this.makeLegend();
      this.listen();
      this.width = 0;
      new ResizeObserver(() => {
        if (this.plot.clientWidth !== this.width) this.draw();
      }).observe(this.plot);
      this.draw();
    }

    get entries() {
      const { type, kinds, series } = this.chart;
      if (type === "grid") {
        return Object.entries(kinds).map(([name, hue]) => ({ name, hue, origin: "" }));
      }
      return series;
    }

    makeLegend() {
      const groups = [...new Set(this.entries.map((entry) => entry.origin))];
      const grouped = groups.length > 1 && this.entries.length > 6;
      for (const origin of grouped ? groups : [undefined]) {
        const line = grouped ? element("div", { class: "group" }, this.legend) : this.legend;
        const switches = [];
        if (grouped) {
          const all = this.makeSwitch(line, `all ${origin}`, () => {
            const on = all.getAttribute("aria-pressed") === "true";
            for (const one of switches) this.turn(one, on);
          });
          all.classList.add("all");
        }
        this.entries.forEach((entry, place) => {
          if (grouped && entry.origin !== origin) return;
          const name = grouped ? entry.name.replace(`, ${origin}`, "") : entry.name;
          const button = this.makeSwitch(line, name, () =>
            this.turn(switched, button.getAttribute("aria-pressed") === "true"));
          const key = shape("svg", { width: 26, height: 14, "aria-hidden": "true" }, button);
          button.prepend(key);
          this.drawKey(key, entry);
          const switched = { button, place };
          switches.push(switched);
        });
      }
      if (this.chart.type === "grid" && !this.entries.length) {
        const scale = element("span", { class: "scale" }, this.legend, "alpha 0");
        const strip = shape("svg", { width: 90, height: 14, "aria-hidden": "true" }, scale);
        for (let part = 0; part < 9; part++) this.shade(strip, 10 * part, 0, 10, 14, part / 8);
        scale.append("1");
      }
    }

    makeSwitch(parent, name, pressed) {
      const button = element("button", { type: "button", "aria-pressed": "true" }, parent, name);
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        pressed();
        this.draw();
      });
      return button;
    }

    turn({ button, place }, on) {
      button.setAttribute("aria-pressed", String(on));
      if (on) this.off.delete(place);
      else this.off.add(place);
    }

    drawKey(key, entry) {
      const stroke = colour(entry.hue);
      if (this.chart.type !== "xy") {
        const published = entry.origin === "published";
        shape("rect", {
          x: 6, y: 1, width: 13, height: 12, rx: 2, stroke,
          fill: published ? "none" : stroke, "stroke-dasharray": published ? "3 2" : "none",
        }, key);
        return;
      }
      shape("path", {
        d: "M0 7H26", stroke, "stroke-width": 2,
        "stroke-dasharray": entry.dashed ? "5 4" : "none",
      }, key);
      if (entry.marked) {
        shape("path", {
          d: marker(entry.mark, 13, 7, 4), stroke, "stroke-width": 1.5,
          fill: entry.origin === "published" ? "var(--paper)" : stroke,
        }, key);
      }
    }

    shade(parent, x, y, width, height, share) {
      return shape("rect", {
        x, y, width, height, rx: 3, fill: "var(--s0)", "fill-opacity": 0.1 + 0.9 * share,
      }, parent);
    }

    draw() {
      this.width = this.plot.clientWidth;
      if (!this.width) return;
      this.canvas.replaceChildren();
      this.spots = [];
      this.show(-1);
      if (this.chart.type === "grid") this.drawGrid();
      else if (this.off.size === this.entries.length) {
        element("p", { class: "caption" }, this.canvas, "Every series is switched off.");
      } else if (this.chart.type === "bars") this.drawBars();
      else this.drawPlane();
    }

    surface(height) {
      return shape("svg", {
        width: this.width, height, viewBox: `0 0 ${this.width} ${height}`, "aria-hidden": "true",
      }, this.canvas);
    }

    // ---- points in a plane

    drawPlane() {
      const { chart } = this;
      const shown = chart.series.map((one, place) => ({ ...one, place }))
        .filter((one) => !this.off.has(one.place));
      const points = shown.flatMap((one) => one.points);
      const onto = chart.log ? Math.log10 : (value) => value;
      const xs = points.map((point) => onto(point.x));
      const ys = points.flatMap((point) =>
        [point.y, point.low ?? point.y, point.high ?? point.y].map(onto));
      const reach = (values, zero) => {
        let low = Math.min(...values), high = Math.max(...values);
        const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
        high += room;
        low = zero ? 0 : low - room;
        return [low, high];
      };
      const [left, right] = reach(xs, false), [bottom, top] = reach(ys, chart.from_zero);
      const height = Math.max(260, Math.min(440, this.width * 0.58));
      const yTicks = chart.log ? this.powers(bottom, top) : ticks(bottom, top, height / 55);
      const yNames = yTicks.map((value) => format(chart.log ? 10 ** value : value));
      const edge = {
        left: 14 + LETTER * 1.1 * Math.max(...yNames.map((name) => name.length)),
        right: 10, top: 26, bottom: 42,
      };
      const inner = { width: this.width - edge.left - edge.right,
        height: height - edge.top - edge.bottom };
      const atX = (value) => edge.left + ((onto(value) - left) / (right - left)) * inner.width;
      const atY = (value) =>
        edge.top + inner.height - ((onto(value) - bottom) / (top - bottom)) * inner.height;
      const svg = this.surface(height);
      const raw = (value) => (chart.log ? 10 ** value : value);
      yTicks.forEach((value, place) => {
        const y = atY(raw(value));
        shape("line", { class: "tick", x1: edge.left, x2: this.width - edge.right, y1: y, y2: y }, svg);
        shape("text", { x: edge.left - 6, y: y + 4, "text-anchor": "end" }, svg, yNames[place]);
      });
      const xTicks = chart.log ? this.powers(left, right)
        : ticks(left, right, inner.width / 70, chart.whole_x);
      for (const value of xTicks) {
        const x = atX(raw(value));
        shape("line", { class: "tick", x1: x, x2: x, y1: edge.top, y2: edge.top + inner.height }, svg);
        shape("text", { x, y: height - edge.bottom + 16, "text-anchor": "middle" }, svg,
          format(raw(value)));
      }
      shape("text", { class: "axis", x: 0, y: 13 }, svg, chart.y_label);
      shape("text", { class: "axis", x: this.width - edge.right, y: height - 6, "text-anchor": "end" },
        svg, chart.x_label);
      const marks = [];
      for (const one of shown) {
        const stroke = colour(one.hue);
        const places = one.points.map((point) => [atX(point.x), atY(point.y)]);
        if (one.joined && places.length > 1) {
          shape("path", {
            d: "M" + places.map((place) => place.join(" ")).join("L"), fill: "none", stroke,
            "stroke-width": one.marked ? 2 : one.hue < 0 ? 6 : 1.5,
            "stroke-opacity": one.hue < 0 ? 0.3 : 1, "stroke-linejoin": "round",
            "stroke-dasharray": one.dashed ? "5 4" : "none", class: "line",
          }, svg);
        }
        one.points.forEach((point, index) => {
          const [x, y] = places[index];
          if (one.marked && point.low !== null && point.high !== null) {
            shape("path", { d: `M${x} ${atY(point.low)}V${atY(point.high)}`, stroke,
              "stroke-width": 1.5, "stroke-opacity": 0.6 }, svg);
          }
          if (one.marked) {
            const r = one.points.length > 40 ? 2.5 : 4.5;
            shape("path", { d: marker(one.mark, x, y, r), stroke, "stroke-width": 1.5,
              fill: one.origin === "published" ? "var(--card)" : stroke, class: "mark" }, svg);
            marks.push({ left: x - r, right: x + r, top: y - r, bottom: y + r });
          }
          if (one.hue < 0) return; // the front repeats points of others
          const facts = Object.entries(point.facts).filter(([, value]) => value);
          this.spots.push({
            left: x - 4, right: x + 4, top: y - 4, bottom: y + 4, label: point.label,
            title: point.label && point.label !== one.name.split(",")[0]
              ? `${point.label} · ${one.name}` : one.name,
            lines: [
              `${chart.y_label}: ${format(point.y)}` + (point.low === null ? ""
                : ` (${format(point.low)} to ${format(point.high)})`),
              `${chart.x_label}: ${format(point.x)}`,
              ...facts.map(([name, value]) => `${name}: ${value}`),
            ],
          });
        });
      }
      if (chart.labelled) this.writeLabels(svg, marks, edge);
    }

    powers(low, high) {
      const found = [];
      for (let power = Math.ceil(low); power <= high; power++) found.push(power);
      return found;
    }

    // Each label where it hides nothing, or not at all: pointing tells the rest.
    writeLabels(svg, marks, edge) {
      const taken = [...marks];
      for (const spot of this.spots) {
        const x = (spot.left + spot.right) / 2, y = (spot.top + spot.bottom) / 2;
        const wide = LETTER * spot.label.length;
        const choices = [
          [x + 8, y + 4, "start", x + 8], [x - 8, y + 4, "end", x - 8 - wide],
          [x, y - 9, "middle", x - wide / 2], [x, y + 18, "middle", x - wide / 2],
        ];
        for (const [tx, ty, anchor, left] of choices) {
          const box = { left, right: left + wide, top: ty - 11, bottom: ty + 3 };
          const inside = box.left > edge.left && box.right < this.width && box.top > edge.top - 8;
          if (!inside || taken.some((other) => overlap(box, other))) continue;
          taken.push(box);
          shape("text", { class: "point", x: tx, y: ty, "text-anchor": anchor }, svg, spot.label);
          break;
        }
      }
    }

    // ---- bars

    drawBars() {
      const { chart } = this;
      const shown = chart.series.map((one, place) => ({ ...one, place }))
        .filter((one) => !this.off.has(one.place));
      const thick = chart.stacked ? 20 : 13, name = 18, gap = 12, foot = 40;
      const lines = chart.stacked ? 1 : shown.length;
      const group = name + lines * (thick + 2) + gap;
      const height = chart.categories.length * group + foot;
      const totals = chart.categories.map((_, place) => {
        const values = shown.map((one) => one.values[place] ?? 0);
        return chart.stacked ? values.reduce((sum, value) => sum + value, 0) : Math.max(...values);
      });
      const most = Math.max(...totals) || 1;
      const room = 10 + LETTER * Math.max(...totals.map((value) => format(value).length));
      const scale = (this.width - room) / most;
      const svg = this.surface(height);
      const base = height - foot;
      for (const value of ticks(0, most, this.width / 90)) {
        const x = value * scale;
        shape("line", { class: value ? "tick" : "base", x1: x, x2: x, y1: 0, y2: base }, svg);
        shape("text", { x, y: base + 15, "text-anchor": value ? "middle" : "start" }, svg,
          format(value));
      }
      shape("text", { class: "axis", x: 0, y: height - 6 }, svg, chart.value_label);
      chart.categories.forEach((category, place) => {
        let y = place * group, x = 0;
        shape("text", { class: "name", x: 4, y: y + 13 }, svg, this.fit(category));
        y += name;
        for (const one of shown) {
          const value = one.values[place];
          if (value === null) {
            if (!chart.stacked) y += thick + 2;
            continue;
          }
          const width = Math.max(value * scale, value > 0 ? 1 : 0), stroke = colour(one.hue);
          const published = one.origin === "published";
          shape("rect", {
            class: "bar", x, y, width, height: thick, fill: stroke, stroke,
            "fill-opacity": published ? 0.08 : 1, "stroke-dasharray": published ? "4 3" : "none",
          }, svg);
          this.spots.push({
            left: x, right: x + width, top: y, bottom: y + thick, title: category,
            lines: [`${one.name}: ${format(value)} ${chart.value_label}`],
          });
          if (chart.stacked) x += width;
          else {
            shape("text", { class: "value", x: width + 5, y: y + thick - 2 }, svg, format(value));
            y += thick + 2;
          }
        }
        if (chart.stacked) {
          shape("text", { class: "value", x: x + 5, y: y + 14 }, svg, format(totals[place]));
        }
      });
    }

    fit(text) {
      const most = Math.floor(this.width / (LETTER + 0.4));
      return text.length > most ? text.slice(0, most - 1) + "…" : text;
    }

    // ---- layers by heads

    drawGrid() {
      const { chart } = this;
      const kinds = Object.keys(chart.kinds);
      const grids = element("div", { class: "grids" }, this.canvas);
      for (const panel of chart.panels) {
        const box = element("div", {}, grids);
        element("p", { class: "name" }, box, panel.name);
        const columns = panel.columns.length, side = 40, head = 18;
        const cell = Math.min(34, (this.width - side) / columns), high = 26;
        const svg = shape("svg", {
          width: side + cell * columns, height: head + high * panel.cells.length,
          "aria-hidden": "true",
        }, box);
        panel.columns.forEach((column, place) => {
          const short = column.replace(/^head /, "");
          if (cell > 16 || place === columns - 1) {
            shape("text", { x: side + cell * (place + 0.5), y: 12, "text-anchor": "middle" }, svg,
              short);
          }
        });
        panel.cells.forEach((row, layer) => {
          const y = head + layer * high;
          shape("text", { x: side - 8, y: y + 17, "text-anchor": "end" }, svg, layer);
          row.forEach((one, place) => {
            const x = side + cell * place;
            const group = shape("g", {}, svg);
            if (one.share === null) {
              shape("rect", { x: x + 1, y: y + 1, width: cell - 2, height: high - 2, rx: 3,
                fill: colour(chart.kinds[one.kind]) }, group);
              if (this.off.has(kinds.indexOf(one.kind))) group.setAttribute("class", "dim");
            } else this.shade(group, x + 1, y + 1, cell - 2, high - 2, one.share);
            if (cell >= LETTER * one.text.length + 4) {
              shape("text", { x: x + cell / 2, y: y + 17, "text-anchor": "middle",
                class: one.share === null || one.share > 0.55 ? "cell strong" : "cell faint" },
              group, one.text);
            }
            this.spots.push({ svg, left: x, right: x + cell, top: y, bottom: y + high,
              title: panel.name, lines: [`layer ${layer}, ${panel.columns[place]}: ${one.words}`] });
          });
        });
      }
    }

    // ---- what is told of a value

    listen() {
      const find = (event) => {
        const frame = this.plot.getBoundingClientRect();
        const x = event.clientX - frame.left, y = event.clientY - frame.top;
        let best = -1, nearest = 20;
        this.spots.forEach((spot, place) => {
          const box = this.place(spot);
          const away = Math.hypot(Math.max(box.left - x, 0, x - box.right),
            Math.max(box.top - y, 0, y - box.bottom));
          if (away < nearest) [best, nearest] = [place, away];
        });
        this.show(best);
      };
      this.plot.addEventListener("pointermove", find);
      this.plot.addEventListener("pointerdown", find);
      this.plot.addEventListener("pointerleave", (event) => {
        if (event.pointerType !== "touch") this.show(-1); // a finger leaves at once
      });
      this.plot.addEventListener("blur", () => this.show(-1));
      this.plot.addEventListener("keydown", (event) => {
        const last = this.spots.length - 1;
        const next = {
          ArrowRight: Math.min(last, this.at + 1), ArrowDown: Math.min(last, this.at + 1),
          ArrowLeft: Math.max(0, this.at - 1), ArrowUp: Math.max(0, this.at - 1),
          Home: 0, End: last, Escape: -1,
        }[event.key];
        if (next === undefined) return;
        event.preventDefault();
        this.show(next);
        const spot = this.spots[next];
        this.spoken.textContent = spot ? [spot.title, ...spot.lines].join(", ") : "";
      });
    }

    // A spot in the plot's own pixels; a panel of a grid has a corner of its own.
    place(spot) {
      if (!spot.svg) return spot;
      const own = spot.svg.getBoundingClientRect(), frame = this.plot.getBoundingClientRect();
      const dx = own.left - frame.left, dy = own.top - frame.top;
      return { left: spot.left + dx, right: spot.right + dx, top: spot.top + dy,
        bottom: spot.bottom + dy };
    }

    show(at) {
      this.at = at;
      this.plot.querySelectorAll(".here").forEach((mark) => mark.remove());
      const spot = this.spots[at];
      this.tip.hidden = !spot;
      if (!spot) return;
      shape("rect", {
        class: "here", x: spot.left - 3, y: spot.top - 3, rx: 3,
        width: spot.right - spot.left + 6, height: spot.bottom - spot.top + 6,
      }, spot.svg ?? this.canvas.querySelector("svg"));
      this.tip.replaceChildren();
      element("b", {}, this.tip, spot.title);
      for (const line of spot.lines) element("div", {}, this.tip, line);
      const box = this.place(spot);
      const left = Math.min(box.right + 10, this.plot.clientWidth - this.tip.offsetWidth);
      const above = box.top - this.tip.offsetHeight - 8;
      this.tip.style.left = `${Math.max(0, left)}px`;
      this.tip.style.top = `${above > -40 ? above : box.bottom + 8}px`;
    }
  }

  const asCsv = (table) =>
    [...table.rows].map((row) => [...row.cells].map((cell) => {
      const text = cell.textContent;
      return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    }).join(",")).join("\n") + "\n";

  for (const button of document.querySelectorAll("button.csv")) {
    button.addEventListener("click", () => {
      const text = asCsv(document.getElementById(button.dataset.table));
      const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
      const link = element("a", { href: address, download: button.dataset.file }, document.body);
      link.click();
      link.remove();
      URL.revokeObjectURL(address);
    });
  }

  for (const chart of JSON.parse(document.getElementById("chart-data").textContent)) {
    new Drawing(chart);
  }
})();
