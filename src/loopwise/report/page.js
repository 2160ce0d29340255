/* Loopwise report: theme button, chart tips and legends, depth lens. No libraries, no network. */
(function () {
  "use strict";
  const $ = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";

  function make(tag, attributes, text) {
    const node = document.createElementNS(SVG, tag);
    for (const name in attributes) node.setAttribute(name, attributes[name]);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  /* theme: follows the system until the reader chooses */
  const root = document.documentElement, button = $("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  function showTheme() { button.textContent = dark() ? "Light page" : "Dark page"; }
  try { const kept = localStorage.getItem("loopwise-theme"); if (kept) root.dataset.theme = kept; } catch (e) { /* storage is off */ }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("loopwise-theme", root.dataset.theme); } catch (e) { /* storage is off */ }
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();

  /* tips on data points */
  const tip = $("tip");
  function place(event) {
    const target = event.target.closest && event.target.closest("[data-tip]");
    tip.hidden = !target;
    if (!target) return;
    tip.textContent = target.dataset.tip;
    const box = target.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const left = Math.min(Math.max(box.left + box.width / 2 - size.width / 2, 6), root.clientWidth - size.width - 6);
    tip.style.left = left + "px";
    tip.style.top = (box.top > size.height + 12 ? box.top - size.height - 8 : box.bottom + 8) + "px";
  }
  for (const kind of ["pointerover", "pointerdown"]) document.addEventListener(kind, place);
  document.addEventListener("scroll", () => { tip.hidden = true; }, true);

  /* legends: press a key to hide or show its curve, point at it to single it out */
  document.querySelectorAll("svg").forEach((svg) => {
    const keys = svg.querySelectorAll("[data-toggle]");
    if (keys.length) svg.setAttribute("role", "group");
    keys.forEach((key) => {
      const name = key.dataset.toggle, pattern = '[data-series~="' + CSS.escape(name) + '"]';
      const curves = svg.querySelectorAll(pattern), others = svg.querySelectorAll("[data-series]:not(" + pattern + ")");
      const flip = () => {
        const off = key.classList.toggle("off");
        key.setAttribute("aria-pressed", String(!off));
        curves.forEach((c) => c.classList.toggle("off-" + name, off));
      };
      const single = (on) => () => { if (!key.classList.contains("off")) others.forEach((c) => c.classList.toggle("dim", on)); };
      key.setAttribute("role", "button");
      key.setAttribute("tabindex", "0");
      key.setAttribute("aria-pressed", "true");
      key.addEventListener("click", flip);
      key.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); flip(); } });
      key.addEventListener("pointerenter", single(true));
      key.addEventListener("pointerleave", single(false));
      key.addEventListener("focus", single(true));
      key.addEventListener("blur", single(false));
    });
  });

  const held = $("lens-data");
  if (held) lens(JSON.parse(held.textContent));

  /* depth lens: the recorded curve of every token, and the exit depth that a threshold makes of it */
  function lens(data) {
    const depths = data.depths, tokens = Array.from(document.querySelectorAll(".lens .t"));
    const signals = {};
    for (const name in data.signals) signals[name] = unpack(data.signals[name]);
    const nll = data.nll ? unpack(data.nll) : null;
    const chooser = $("lens-signal"), slider = $("lens-threshold"), rule = $("lens-rule"), passage = $("lens-passage");
    let exits = new Uint8Array(tokens.length), chosen = -1;

    function unpack(packed) {
      const raw = atob(packed.data), n = tokens.length * depths, out = new Float64Array(n);
      for (let i = 0; i < n; i++) {
        const b = 3 * (i >> 1), middle = raw.charCodeAt(b + 1);
        const q = i % 2 ? (middle >> 4) | (raw.charCodeAt(b + 2) << 4) : raw.charCodeAt(b) | ((middle & 15) << 8);
        const at = packed.lo + ((q - 1) / 4094) * (packed.hi - packed.lo);
        out[i] = q === 0 ? NaN : packed.log ? Math.pow(10, at) : at;
      }
      return out;
    }
    const about = () => data.signals[chooser.value];
    const curve = (values, token) => values.subarray(token * depths, (token + 1) * depths);
    function threshold() {
      const range = about().range;
      const limit = Math.pow(10, range[0] + (slider.value / slider.max) * (range[1] - range[0]));
      return Math.abs(limit / about().start - 1) < 1e-9 ? about().start : limit;
    }
    function exitDepth(values, limit, first, settled) {
      if (settled) {
        let d = depths;
        while (d > 1 && !(values[d - 1] >= limit)) d--;
        return d;
      }
      for (let d = first; d < depths; d++) if (values[d - 1] < limit) return d;
      return depths;
    }
    function plain(value) {
      if (!isFinite(value)) return "–";
      const size = Math.abs(value);
      if (size === 0 || (size >= 0.001 && size < 10000)) return String(+value.toPrecision(3));
      const parts = value.toExponential(1).split("e");
      const raised = parts[1].replace("+", "").replace(/[-0-9]/g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
      return (parts[0] === "1.0" ? "" : parts[0] + "·") + "10" + raised;
    }

    function update() {
      const limit = threshold(), first = about().first, settled = rule.value === "settled";
      const values = signals[chooser.value], counts = new Array(depths).fill(0);
      let sum = 0, loss = 0, full = 0;
      tokens.forEach((node, i) => {
        const d = exitDepth(curve(values, i), limit, first, settled);
        if (d !== exits[i] || !node.dataset.depth) {
          exits[i] = d;
          node.className = "t d" + d + (i === chosen ? " on" : "");
          node.dataset.depth = d;
        }
        sum += d;
        counts[d - 1]++;
        if (nll) { loss += nll[i * depths + d - 1]; full += nll[i * depths + depths - 1]; }
      });
      const n = tokens.length;
      $("lens-limit").textContent = about().label + " < " + plain(limit);
      slider.setAttribute("aria-valuetext", $("lens-limit").textContent + ", mean depth " + (sum / n).toFixed(2));
      $("lens-mean").textContent = (sum / n).toFixed(2);
      if (nll) $("lens-loss").textContent = (loss / n).toFixed(4) + " (" + signed((loss - full) / n) + ")";
      const most = Math.max.apply(null, counts);
      $("lens-hist").childNodes.forEach((bar, i) => {
        bar.style.height = (counts[i] ? Math.max(3, (100 * counts[i]) / most) : 0) + "%";
        bar.dataset.tip = "depth " + (i + 1) + ": " + counts[i] + " of " + n + " tokens";
      });
      if (chosen >= 0) detail(chosen);
    }
    const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(4) + " against depth " + depths;

    function detail(index) {
      const node = tokens[index], d = exits[index], box = $("lens-detail");
      box.replaceChildren();
      const title = document.createElement("h3"), facts = document.createElement("p");
      title.textContent = "“" + node.textContent.replace(/\n/g, "") + "”";
      facts.className = "facts";
      const limit = threshold(), value = signals[chooser.value][index * depths + d - 1];
      let text = data.types[data.type[index]] + ". Leaves after " + d + " of " + depths + " passes";
      text += d < depths ? ", where " + about().label + " is " + plain(value) + "." : ": it never fell below the threshold.";
      if (nll) text += " Loss there " + nll[index * depths + d - 1].toFixed(3) + ", at full depth " + nll[index * depths + depths - 1].toFixed(3) + " nats.";
      facts.textContent = text;
      const plots = document.createElement("div");
      plots.className = "plots";
      plots.append(plot(curve(signals[chooser.value], index), d, about().label, true, limit));
      if (nll) plots.append(plot(curve(nll, index), d, "loss (nats)", false));
      box.append(title, facts, plots);
      if (data.guess) {
        const name = document.createElement("p");
        name.className = "facts";
        name.textContent = "First choice, by the depth from which on:";
        box.append(name, ribbon(data.guess[index]));
      }
      $("lens-say").textContent = title.textContent + ". " + text;
    }

    function ribbon(runs) {
      const list = document.createElement("ul");
      list.className = "ribbon";
      list.setAttribute("aria-label", "the model's best guess by depth");
      runs.forEach((run) => {
        const item = document.createElement("li");
        item.className = "d" + run[0];
        item.textContent = run[0] + " " + data.pieces[run[1]].replace(/\n/g, "⏎");
        list.append(item);
      });
      return list;
    }

    function plot(values, exit, name, log, limit) {
      const w = 308, h = 122, left = 38, right = 6, top = 18, bottom = 20;
      const svg = make("svg", { viewBox: "0 0 " + w + " " + h, role: "img", "aria-label": name + " by depth" });
      const shown = Array.from(values).filter((v) => isFinite(v) && (!log || v > 0));
      if (log) shown.push(limit);
      const scale = log ? Math.log10 : (v) => v;
      let lo = Math.min.apply(null, shown.map(scale)), hi = Math.max.apply(null, shown.map(scale));
      if (log) { lo = Math.floor(lo); hi = Math.ceil(hi); }
      if (hi - lo < 1e-9) { lo -= 0.5; hi += 0.5; }
      const x = (d) => left + (Math.log2(d) / Math.log2(Math.max(depths, 2))) * (w - left - right);
      const y = (v) => h - bottom - ((scale(v) - lo) / (hi - lo)) * (h - top - bottom);
      svg.append(make("text", { x: 0, y: 11, "font-size": 11, class: "soft" }, name));
      [lo, hi].forEach((t) => {
        const value = log ? Math.pow(10, t) : t, at = y(value);
        svg.append(make("line", { x1: left, x2: w - right, y1: at, y2: at, class: "rule" }));
        svg.append(make("text", { x: left - 5, y: at + 4, "text-anchor": "end", "font-size": 10, class: "soft" }, plain(value)));
      });
      for (let d = 1; d <= depths; d *= 2) svg.append(make("text", { x: x(d), y: h - 6, "text-anchor": "middle", "font-size": 10, class: "soft" }, d));
      if (log) svg.append(make("line", { x1: left, x2: w - right, y1: y(limit), y2: y(limit), class: "mark", "stroke-dasharray": "4 3" }));
      svg.append(make("line", { x1: x(exit), x2: x(exit), y1: top, y2: h - bottom, class: "mark" }));
      let path = "";
      values.forEach((v, i) => { if (isFinite(v) && (!log || v > 0)) path += (path ? "L" : "M") + x(i + 1).toFixed(1) + "," + y(v).toFixed(1); });
      svg.append(make("path", { d: path, fill: "none", "stroke-width": 1.8, class: "line " + (log ? "s-kl" : "s-probe") }));
      if (isFinite(values[exit - 1]) && (!log || values[exit - 1] > 0)) {
        svg.append(make("circle", { cx: x(exit), cy: y(values[exit - 1]), r: 3.6, class: "dot " + (log ? "s-kl" : "s-probe") }));
      }
      return svg;
    }

    function choose(index, focus) {
      if (chosen >= 0) { tokens[chosen].classList.remove("on"); tokens[chosen].tabIndex = -1; }
      chosen = index;
      tokens[index].classList.add("on");
      tokens[index].tabIndex = 0;
      if (focus) tokens[index].focus({ preventScroll: false });
      detail(index);
    }
    function beside(index, direction) {
      const here = tokens[index].getBoundingClientRect();
      let best = index, score = Infinity;
      tokens.forEach((node, i) => {
        const box = node.getBoundingClientRect(), dy = (box.top - here.top) * direction;
        if (dy < 4 || !box.width) return;
        const s = dy * 4 + Math.abs(box.left - here.left);
        if (s < score) { score = s; best = i; }
      });
      return best;
    }
    function visible(index, step) {
      let i = index + step;
      while (i >= 0 && i < tokens.length && tokens[i].closest(".passage").hidden) i += step;
      return i >= 0 && i < tokens.length ? i : index;
    }

    const order = new Map(tokens.map((node, i) => [node, i]));
    const texts = $("lens-text");
    const under = (event) => { const node = event.target.closest(".t"); return node ? order.get(node) : undefined; };
    const idle = (on) => $("lens-panel").classList.toggle("idle", on); // on small screens an idle panel is away
    function meet(event, focus) {
      const i = under(event);
      if (i === undefined) return;
      idle(false);
      if (i !== chosen || focus) choose(i, focus);
    }
    texts.addEventListener("pointerover", (e) => { if (e.pointerType !== "touch") meet(e, false); });
    texts.addEventListener("click", (e) => meet(e, true));
    texts.addEventListener("focusin", (e) => meet(e, false));
    $("lens-close").addEventListener("click", () => idle(true));
    texts.addEventListener("keydown", (e) => {
      const moves = { ArrowRight: () => visible(chosen, 1), ArrowLeft: () => visible(chosen, -1), ArrowDown: () => beside(chosen, 1), ArrowUp: () => beside(chosen, -1) };
      if (moves[e.key] && chosen >= 0) { e.preventDefault(); choose(moves[e.key](), true); }
    });
    function showPassage() {
      document.querySelectorAll(".passage").forEach((p) => { p.hidden = passage.value !== "all" && p.dataset.passage !== passage.value; });
      const first = tokens.findIndex((node) => !node.closest(".passage").hidden);
      if (first >= 0) choose(first, false);
      idle(true);
    }
    function newSignal() {
      const range = about().range;
      slider.value = Math.round((slider.max * (Math.log10(about().start) - range[0])) / (range[1] - range[0]));
      $("lens-cost").textContent = about().cost;
      update();
    }
    passage.addEventListener("change", showPassage);
    chooser.addEventListener("change", newSignal);
    slider.addEventListener("input", update);
    rule.addEventListener("change", update);
    document.querySelectorAll(".needs-js").forEach((node) => { node.hidden = false; });
    newSignal();
    showPassage();
  }
})();
