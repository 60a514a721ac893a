"use strict";
// The interactive timeline. Data arrives as flat arrays of gaps and durations (see html.rs);
// spans are kept in typed arrays and found by bisection, so a frame costs what it shows.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const view = $("view"), axis = $("axis"), canvas = $("lanes"), tip = $("tip");
  const GUTTER = 96, AXIS = 30, MIN_SPAN_NS = 50, MANY_SPANS = 30000;
  const threads = data.threads.map(([name, weight, cls, context], at) => ({
    name, weight, cls, context, colour: data.palette[at % data.palette.length],
  }));

  const unpack = (flat, label) => {
    const n = flat.length / 4;
    const lane = { label, what: new Int32Array(n), start: new Float64Array(n), end: new Float64Array(n),
      why: new Uint8Array(n), cpu: null, waits: null, marks: [] };
    let at = 0;
    for (let i = 0; i < n; i++) {
      at += flat[4 * i + 1];
      lane.what[i] = flat[4 * i];
      lane.start[i] = at;
      at += flat[4 * i + 2];
      lane.end[i] = at;
      lane.why[i] = flat[4 * i + 3];
    }
    return lane;
  };

  const cpuLanes = data.cpus.map((flat, cpu) => unpack(flat, "cpu" + cpu));
  const threadLanes = (() => {
    const shown = Math.min(threads.length, data.rows);
    const found = Array.from({ length: shown }, () => []);
    cpuLanes.forEach((lane, cpu) => lane.what.forEach((who, i) => {
      if (who > 0 && who <= shown) found[who - 1].push([lane.start[i], lane.end[i], lane.why[i], cpu]);
    }));
    return found.map((runs, at) => {
      runs.sort((a, b) => a[0] - b[0]);
      return { label: threads[at].name, what: Int32Array.from(runs, () => at + 1),
        start: Float64Array.from(runs, (r) => r[0]), end: Float64Array.from(runs, (r) => r[1]),
        why: Uint8Array.from(runs, (r) => r[2]), cpu: Uint16Array.from(runs, (r) => r[3]),
        waits: unpack(data.waits[at], ""), marks: [] };
    });
  })();
  for (let i = 0; i < data.marks.length; i += 5) {
    const [kind, time, cpu, who, other] = data.marks.slice(i, i + 5);
    const mark = { kind: data.kinds[kind], time, cpu, who, other: other - 1 };
    cpuLanes[cpu].marks.push(mark);
    if (who > 0 && who <= threadLanes.length) threadLanes[who - 1].marks.push(mark);
  }

  let lanes = cpuLanes, from = 0, to = Math.max(1, data.end), picked = 0, frame = 0;
  let laneHeight = 30, gap = 12, width = 800, thin = 1;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const xOf = (t) => GUTTER + (t - from) / (to - from) * (width - GUTTER - 12);
  const timeAt = (x) => from + (x - GUTTER) / (width - GUTTER - 12) * (to - from);
  const trim = (v, digits) => digits ? v.toFixed(digits).replace(/\.?0+$/, "") : v.toFixed(0);
  const human = (ns) => ns === 0 ? "0" : ns < 1e3 ? trim(ns, 0) + " ns" : ns < 1e6 ? trim(ns / 1e3, 3) + " µs"
    : ns < 1e9 ? trim(ns / 1e6, 6) + " ms" : trim(ns / 1e9, 9) + " s";

  const firstEndingAfter = (lane, time) => {
    let low = 0, high = lane.end.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.end[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  };
  const firstMark = (marks, time) => {
    let low = 0, high = marks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (marks[middle].time >= time) high = middle; else low = middle + 1;
    }
    return low;
  };

  const sized = (element, height) => {
    const scale = window.devicePixelRatio || 1;
    const wanted = [Math.round(width * scale), Math.round(height * scale)];
    if (element.width !== wanted[0] || element.height !== wanted[1]) [element.width, element.height] = wanted;
    element.style.height = height + "px";
    const pen = element.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    return pen;
  };
  const font = (size) => size + "px system-ui, 'DejaVu Sans', sans-serif";

  const inkOn = (colour) => {
    const part = (at) => parseInt(colour.slice(at, at + 2), 16);
    return 0.299 * part(1) + 0.587 * part(3) + 0.114 * part(5) > 140 ? "#1f2933" : "#ffffff";
  };

  const roundStep = () => {
    const raw = (to - from) / Math.max(2, (width - GUTTER) / 100), power = 10 ** Math.floor(Math.log10(raw));
    return Math.max(1, power * ([1, 2, 5].find((f) => f * 1.5 * power >= raw) || 10));
  };

  function drawAxis(grid) {
    const pen = sized(axis, AXIS), step = roundStep(), faint = css("--faint");
    pen.font = font(12);
    pen.textAlign = "center";
    for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) {
      const x = xOf(tick);
      grid.fillRect(x, 0, 1, grid.canvas.height);
      pen.fillStyle = faint;
      pen.fillRect(x, AXIS - 6, 1, 6);
      // The last label would hang over the edge.
      if (x < width - 30) pen.fillText(tick === 0 ? "0" : human(tick), x, 17);
    }
  }

  function drawSpans(pen, lane, y, height, colourOf, labelOf) {
    // Runs thinner than `thin` are gathered, so that 200,000 of them cost one pass and few fills.
    let dense = -1, denseEnd = -1, denseColour = "";
    const flush = () => {
      if (dense >= 0) { pen.fillStyle = denseColour; pen.fillRect(Math.max(GUTTER, dense), y, Math.max(1, denseEnd - dense), height); }
      dense = -1;
    };
    for (let i = firstEndingAfter(lane, from); i < lane.end.length && lane.start[i] < to; i++) {
      const left = Math.max(GUTTER, xOf(lane.start[i])), right = Math.min(width - 12, xOf(lane.end[i]));
      const colour = colourOf(lane.what[i]);
      if (right - left < thin) {
        const pixel = Math.floor(left / thin) * thin;
        if (dense !== pixel) { flush(); dense = pixel; denseColour = colour; }
        denseEnd = right;
        continue;
      }
      flush();
      pen.fillStyle = colour;
      const wide = right - left > 4 ? right - left - 1 : right - left;
      pen.fillRect(left, y, wide, height);
      if (labelOf && wide > 26 && height > 13) {
        const label = labelOf(lane, i);
        if (pen.measureText(label).width + 8 < wide) {
          pen.fillStyle = inkOn(colour);
          pen.fillText(label, left + wide / 2, y + height / 2 + 4);
        }
      }
    }
    flush();
  }

  const ALARMS = new Set(["throttle", "fault", "revoke", "stall", "lost_tick"]);
  function drawMarks(pen, lane, y, calm, alarm) {
    const last = {};
    for (let i = firstMark(lane.marks, from); i < lane.marks.length && lane.marks[i].time <= to; i++) {
      const mark = lane.marks[i], x = xOf(mark.time);
      if (x - (last[mark.kind] ?? -9) < 3) continue;
      last[mark.kind] = x;
      if (picked && mark.who !== picked) continue;
      pen.fillStyle = ALARMS.has(mark.kind) ? alarm : calm;
      pen.beginPath();
      if (ALARMS.has(mark.kind)) { pen.moveTo(x - 4.5, y - 9); pen.lineTo(x + 4.5, y - 9); pen.lineTo(x, y - 1); }
      else if (mark.other >= 0) { pen.moveTo(x, y - 9); pen.lineTo(x + 4, y - 5); pen.lineTo(x, y - 1); pen.lineTo(x - 4, y - 5); }
      else pen.rect(x - 0.75, y - 7, 1.5, 6);
      pen.fill();
    }
  }

  function draw() {
    frame = 0;
    width = view.clientWidth;
    laneHeight = lanes.length > 64 ? 14 : lanes.length > 16 ? 20 : 30;
    gap = lanes.length > 64 ? 3 : 12;
    const visible = (lane) => firstEndingAfter(lane, to) - firstEndingAfter(lane, from);
    thin = lanes.reduce((sum, lane) => sum + visible(lane), 0) > MANY_SPANS ? 4 : 1;
    const pen = sized(canvas, gap + lanes.length * (laneHeight + gap));
    pen.font = font(12);
    const wait = css("--wait"), throttled = css("--throttled"), empty = css("--lane");
    const ink = css("--ink"), faint = css("--faint");
    lanes.forEach((lane, row) => {
      pen.fillStyle = empty;
      if (!lane.waits) pen.fillRect(GUTTER, gap + row * (laneHeight + gap), width - GUTTER - 12, laneHeight);
    });
    pen.fillStyle = css("--line");
    drawAxis(pen);
    lanes.forEach((lane, row) => {
      const y = gap + row * (laneHeight + gap);
      pen.textAlign = "center";
      if (lane.waits) {
        pen.globalAlpha = picked && picked !== row + 1 ? 0.25 : 1;
        const thin = Math.max(3, laneHeight / 5);
        drawSpans(pen, lane.waits, y + (laneHeight - thin) / 2, thin, (state) => state ? throttled : wait, null);
      }
      const colourOf = (who) => who === 0 ? data.system : threads[who - 1].colour;
      if (picked && !lane.waits) {
        pen.globalAlpha = 0.16;
        drawSpans(pen, lane, y, laneHeight, colourOf, null);
        pen.globalAlpha = 1;
        for (let i = firstEndingAfter(lane, from); i < lane.end.length && lane.start[i] < to; i++) {
          if (lane.what[i] !== picked) continue;
          const x = Math.max(GUTTER, xOf(lane.start[i]));
          pen.fillStyle = colourOf(picked);
          pen.fillRect(x, y, Math.max(1, Math.min(width - 12, xOf(lane.end[i])) - x), laneHeight);
        }
      } else {
        drawSpans(pen, lane, y, laneHeight, colourOf, (of, i) => of.cpu ? "cpu" + of.cpu[i]
          : of.what[i] ? threads[of.what[i] - 1].name : "");
      }
      pen.globalAlpha = 1;
      if (gap > 8) drawMarks(pen, lane, y, faint, throttled);
      pen.fillStyle = ink;
      pen.textAlign = "right";
      pen.fillText(lane.label.length > 12 ? lane.label.slice(0, 11) + "…" : lane.label, GUTTER - 10, y + laneHeight / 2 + 4);
    });
    $("range").textContent = (thin > 1 ? "each stripe stands for several runs: zoom in · " : "") + human(from) + " to " + human(to) + "  (" + human(to - from) + ")";
  }
  const redraw = () => { if (!frame) frame = requestAnimationFrame(draw); };

  function show(newFrom, newTo) {
    const span = Math.min(Math.max(newTo - newFrom, Math.min(MIN_SPAN_NS, data.end)), data.end);
    from = Math.round(Math.min(Math.max(0, newFrom), data.end - span));
    to = Math.max(from + 1, Math.round(from + span));
    tip.hidden = true;
    redraw();
  }
  function zoom(factor, x) {
    const centre = Math.min(to, Math.max(from, timeAt(x)));
    show(centre - (centre - from) * factor, centre + (to - centre) * factor);
  }
  const pan = (part) => show(from + (to - from) * part, to + (to - from) * part);

  view.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      pan((event.deltaX || event.deltaY) / 1200);
    } else {
      zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) / 400), event.clientX - view.getBoundingClientRect().left);
    }
  }, { passive: false });

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, from, to, top: view.scrollTop, moved: false };
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("dragging");
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return hover(event);
    const shift = (event.clientX - drag.x) / (width - GUTTER - 12) * (drag.to - drag.from);
    drag.moved ||= Math.abs(event.clientX - drag.x) + Math.abs(event.clientY - drag.y) > 3;
    view.scrollTop = drag.top - (event.clientY - drag.y);
    if (drag.moved) show(drag.from - shift, drag.to - shift);
  });
  const release = () => { drag = null; canvas.classList.remove("dragging"); };
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) {
      const hit = find(event);
      pick(hit && hit.who ? hit.who : 0);
    }
    release();
  });
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });

  const find = (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left;
    const row = Math.floor((event.clientY - box.top - gap / 2) / (laneHeight + gap)), lane = lanes[row];
    if (!lane || x < GUTTER) return null;
    const time = timeAt(x), slack = (to - from) / (width - GUTTER - 12) * 4;
    const marks = [];
    for (let i = firstMark(lane.marks, time - slack); i < lane.marks.length && lane.marks[i].time <= time + slack && marks.length < 4; i++) marks.push(lane.marks[i]);
    const i = firstEndingAfter(lane, time), hit = i < lane.end.length && lane.start[i] <= time;
    if (hit) return { who: lane.what[i], start: lane.start[i], end: lane.end[i], why: data.endings[lane.why[i]], cpu: lane.cpu ? lane.cpu[i] : row, marks };
    if (!lane.waits) return { idle: true, cpu: row, start: i ? lane.end[i - 1] : 0, end: i < lane.end.length ? lane.start[i] : data.end, marks };
    const w = firstEndingAfter(lane.waits, time), waits = w < lane.waits.end.length && lane.waits.start[w] <= time;
    if (waits) return { who: row + 1, state: lane.waits.what[w] ? "throttled: waits for budget" : "runnable: waits for a CPU", start: lane.waits.start[w], end: lane.waits.end[w], marks };
    return marks.length ? { who: row + 1, marks } : null;
  };

  function hover(event) {
    const hit = find(event);
    tip.hidden = !hit;
    if (!hit) return;
    const name = hit.who ? threads[hit.who - 1].name : hit.idle ? "idle" : "system";
    const lines = [];
    if (hit.state) lines.push(hit.state);
    else if (hit.cpu !== undefined) lines.push((hit.idle ? "nothing to run on cpu" : "on cpu") + hit.cpu);
    if (hit.end !== undefined) {
      lines.push(human(hit.start) + " to " + human(hit.end), "for " + human(hit.end - hit.start));
    }
    if (hit.why && hit.who) lines.push("ended by " + hit.why);
    for (const mark of hit.marks) {
      const who = mark.who ? " " + threads[mark.who - 1].name : "";
      const other = mark.other >= 0 ? (mark.kind === "ipi" ? " to cpu" : " from cpu") + mark.other : "";
      lines.push("• " + mark.kind + who + other + " at " + human(mark.time));
    }
    tip.replaceChildren(Object.assign(document.createElement("b"), { textContent: name }), "\n" + lines.join("\n"));
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.min(event.clientX + 16, window.innerWidth - box.width - 8) + "px";
    tip.style.top = Math.min(event.clientY + 16, window.innerHeight - box.height - 8) + "px";
  }

  function pick(who) {
    picked = picked === who ? 0 : who;
    for (const chip of $("legend").querySelectorAll("button")) chip.setAttribute("aria-pressed", String(+chip.dataset.who === picked));
    redraw();
  }
  threads.slice(0, data.rows).forEach((thread, at) => {
    const chip = document.createElement("button"), swatch = document.createElement("i"), small = document.createElement("small");
    chip.type = "button";
    chip.dataset.who = at + 1;
    chip.setAttribute("aria-pressed", "false");
    swatch.style.background = thread.colour;
    small.textContent = [thread.cls, "×" + thread.weight, thread.context].filter(Boolean).join(" · ");
    chip.append(swatch, thread.name, small);
    chip.addEventListener("click", () => pick(at + 1));
    $("legend").append(chip);
  });
  const keys = [["system", data.system], ["waits for a CPU", "var(--wait)"], ["waits for budget", "var(--throttled)"],
    ["▼ throttled, fault, revoked"], ["◆ moved between CPUs, IPI"], ["❘ woken and other remarks"]];
  for (const [name, colour] of keys) {
    const key = document.createElement("span"), swatch = document.createElement("i");
    swatch.style.background = colour;
    key.append(...(colour ? [swatch] : []), name);
    $("keys").append(key);
  }

  const lanesBy = (cpu) => {
    lanes = cpu ? cpuLanes : threadLanes;
    $("by-cpu").setAttribute("aria-pressed", String(cpu));
    $("by-thread").setAttribute("aria-pressed", String(!cpu));
    tip.hidden = true;
    redraw();
  };
  $("by-cpu").addEventListener("click", () => lanesBy(true));
  $("by-thread").addEventListener("click", () => lanesBy(false));
  const middle = () => GUTTER + (width - GUTTER) / 2;
  $("zoom-in").addEventListener("click", () => zoom(0.5, middle()));
  $("zoom-out").addEventListener("click", () => zoom(2, middle()));
  $("fit").addEventListener("click", () => show(0, data.end));
  view.addEventListener("keydown", (event) => {
    const keys = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.5, middle()),
      "-": () => zoom(2, middle()), 0: () => show(0, data.end), Escape: () => pick(picked) };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  const copy = $("copy");
  if (copy) copy.addEventListener("click", async () => {
    // A page from a file may not use the clipboard everywhere; selecting the text always works.
    try { await navigator.clipboard.writeText($("command").textContent); copy.textContent = "Copied"; }
    catch { getSelection().selectAllChildren($("command")); copy.textContent = "Selected"; }
  });
  new ResizeObserver(redraw).observe(view);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // So that a link can show a view: #lanes=thread&pick=3&zoom=0.2
  if (location.hash.includes("lanes=thread")) lanesBy(false);
  const wanted = /pick=(\d+)/.exec(location.hash), zoomed = /zoom=([\d.]+)/.exec(location.hash);
  if (wanted) pick(Math.min(threads.length, +wanted[1]));
  if (zoomed) show(0, data.end * Math.min(1, +zoomed[1]));
  draw();
})();
