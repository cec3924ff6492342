"use strict";
// Two charts on canvas. Each draws all of its data at once; `box` maps data to pixels.

function begin(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const draw = canvas.getContext("2d");
  draw.scale(ratio, ratio);
  draw.font = "11px system-ui, sans-serif";
  return { draw, width, height };
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function path(draw, points) {
  draw.beginPath();
  points.forEach(([x, y], index) => (index ? draw.lineTo(x, y) : draw.moveTo(x, y)));
  draw.stroke();
}

function label(draw, text, x, y, align = "center") {
  draw.textAlign = align;
  draw.fillText(text, x, y);
}

// X = L_env / L_inference (logarithmic) against Y = L_env / L_control.
function drawRoofline(canvas, points, status) {
  const { draw, width, height } = begin(canvas);
  const left = 34, right = width - 8, top = 8, bottom = height - 30;
  const known = points.filter(([x, y]) => x && y).map(([x]) => x).concat(status.x_p50 || [], status.x_p99 || []);
  const low = Math.min(0.1, ...known.map((x) => x / 1.5)), high = Math.max(10, ...known.map((x) => x * 1.5));
  const atX = (x) => left + ((Math.log(x) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (right - left);
  const atY = (y) => bottom - (Math.min(y, 1.2) / 1.2) * (bottom - top);

  draw.fillStyle = colour("sand");
  draw.fillRect(left, top, atX(1) - left, bottom - top);
  draw.fillStyle = colour("sky");
  draw.fillRect(atX(1), top, right - atX(1), bottom - top);
  draw.fillStyle = colour("soft");
  label(draw, "inference-bound", (left + atX(1)) / 2, bottom - 6);
  label(draw, "environment-bound", (atX(1) + right) / 2, bottom - 6);
  for (const x of [0.01, 0.1, 1, 10, 100, 1000]) if (x >= low && x <= high) label(draw, `${x}`, atX(x), bottom + 13);
  for (const y of [0, 0.5, 1]) label(draw, `${y}`, left - 5, atY(y) + 4, "right");
  label(draw, "X = executed window / inference time", (left + right) / 2, height - 3);
  label(draw, "Y", 8, top + 8);

  const steps = Array.from({ length: 121 }, (_, i) => low * (high / low) ** (i / 120));
  draw.strokeStyle = colour("soft");
  draw.setLineDash([4, 3]);
  path(draw, steps.map((x) => [atX(x), atY(x / (1 + x))]));
  draw.setLineDash([]);
  draw.strokeStyle = colour("ink");
  draw.lineWidth = 2;
  path(draw, steps.map((x) => [atX(x), atY(Math.min(1, x))]));

  draw.fillStyle = colour("blue");
  draw.globalAlpha = 0.25;
  for (const [x, y] of points) if (x && y) dot(draw, atX(x), atY(y), 2.5);
  draw.globalAlpha = 1;
  mark(draw, status.x_p99, status.y_p99, "p99", colour("orange"));
  mark(draw, status.x_p50, status.y_p50, "p50", colour("blue"));

  function mark(draw, x, y, name, fill) {
    if (!x || !y) return;
    draw.fillStyle = fill;
    dot(draw, atX(x), atY(y), 5);
    label(draw, name, atX(x), atY(y) - 9);
  }
}

function dot(draw, x, y, radius) {
  draw.beginPath();
  draw.arc(x, y, radius, 0, 2 * Math.PI);
  draw.fill();
}

const JOINT_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999933", "#882255"];

// Rows [time, joint 0, joint 1, ...] of the last seconds, and what the running chunk plans ahead.
function drawMotion(canvas, rows, chunk, swaps, shown, dt) {
  const { draw, width, height } = begin(canvas);
  const left = 44, right = width - 8, top = 8, bottom = height - 22, past = 6, ahead = 1.5;
  const now = rows.length ? rows[rows.length - 1][0] : 0;
  const recent = rows.filter(([time]) => time >= now - past);
  const plan = chunk ? chunk.rows.map((row, i) => [chunk.start_s + i * chunk.dt, ...row]).filter(([time]) => time >= now) : [];
  const values = [...recent, ...plan].flatMap((row) => shown.map((joint) => row[joint + 1]));
  const [low, high] = span(values);
  const atX = (time) => left + ((time - now + past) / (past + ahead)) * (right - left);
  const atY = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);

  draw.strokeStyle = colour("line");
  for (let i = 0; i <= 4; i += 1) {
    const value = low + (i / 4) * (high - low);
    path(draw, [[left, atY(value)], [right, atY(value)]]);
    draw.fillStyle = colour("soft");
    label(draw, value.toFixed(2), left - 5, atY(value) + 4, "right");
  }
  for (let second = -past; second <= ahead; second += 1) label(draw, second === 0 ? "now" : `${second} s`, atX(now + second), height - 8);
  path(draw, [[atX(now), top], [atX(now), bottom]]);
  draw.save();
  draw.beginPath();
  draw.rect(left, top - 4, right - left, bottom - top + 8);
  draw.clip();
  for (const joint of shown) {
    draw.strokeStyle = JOINT_COLOURS[joint % JOINT_COLOURS.length];
    draw.lineWidth = 2;
    for (const part of stretches(recent, 2.5 * dt)) path(draw, part.map((row) => [atX(row[0]), atY(row[joint + 1])]));
    draw.setLineDash([2, 3]);
    if (plan.length) path(draw, plan.map((row) => [atX(row[0]), atY(row[joint + 1])]));
    draw.setLineDash([]);
    draw.lineWidth = 1.5;
    draw.fillStyle = colour("panel");
    for (const row of recent.filter(([time]) => swaps.some((swap) => Math.abs(swap - time) < dt / 2))) {
      dot(draw, atX(row[0]), atY(row[joint + 1]), 3);
      draw.stroke();
    }
  }
  draw.restore();
}

function span(values) {
  if (!values.length) return [-1, 1];
  const low = Math.min(...values), high = Math.max(...values), margin = Math.max(0.05 * (high - low), 0.01);
  return [low - margin, high + margin];
}

// Rows that follow each other without a gap.
function stretches(rows, gap) {
  const parts = [];
  rows.forEach((row, i) => {
    if (!i || row[0] - rows[i - 1][0] > gap) parts.push([]);
    parts[parts.length - 1].push(row);
  });
  return parts;
}
