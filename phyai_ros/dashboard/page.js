// Asks for what is new three times a second while the page is visible, and shows it. Texts are set as text, never as HTML.
const POLL_MS = 350, PICTURES_EVERY = 3, KEPT_ROWS = 400, KEPT_POINTS = 200, SILENT_S = 2;
const COUNTERS = {
  chunks: "chunks executed", rows_left: "rows left", delay_forecast: "delay forecast (ticks)", starved_ticks: "starved ticks",
  missed_ticks: "missed ticks", hold_ticks: "held ticks", stops: "stops", chunks_discarded: "chunks of an old epoch",
  chunks_rejected: "chunks refused", policy_errors: "policy errors", epoch: "epoch",
};
const BAD = ["starved_ticks", "missed_ticks", "chunks_rejected", "policy_errors"];
const kept = { rows: [], points: [], commandCount: 0, pointCount: 0, polls: 0, hidden: new Set(), policy: "" };

const byId = (id) => document.getElementById(id);
const decimals = (s) => (Math.abs(s) < 0.001 ? 2 : Math.abs(s) < 0.1 ? 1 : 0);
const SHORTEST_S = 1e-5;

function milliseconds(s) {
  if (s === null || s === undefined) return "";
  return s > 0 && s < SHORTEST_S ? "< 0.01 ms" : `${(1000 * s).toFixed(decimals(s))} ms`;
}

function make(tag, text = "", kind = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  element.className = kind;
  return element;
}

function fillTable(id, rows) {
  byId(id).tBodies[0].replaceChildren(...rows.map((cells) => {
    const line = document.createElement("tr");
    line.append(...cells);
    return line;
  }));
}

async function refresh() {
  if (document.hidden) return;
  let state;
  try {
    const answer = await fetch(`state?commands=${kept.commandCount}&points=${kept.pointCount}`);
    state = await answer.json();
  } catch (error) {
    return notice("The dashboard server does not answer; the figures below are old.");
  }
  keepNew(state);
  kept.state = state;
  show(state);
  kept.polls += 1;
}

function keepNew(state) {
  if (state.command_count < kept.commandCount || state.point_count < kept.pointCount) {
    kept.rows = [];
    kept.points = [];
  }
  kept.rows = [...kept.rows, ...state.commands].slice(-KEPT_ROWS);
  kept.points = [...kept.points, ...state.points].slice(-KEPT_POINTS);
  kept.commandCount = state.command_count;
  kept.pointCount = state.point_count;
}

function notice(text) {
  byId("notice").hidden = !text;
  byId("notice").textContent = text;
  if (text) {
    byId("state").textContent = "no news";
    byId("state").className = "state";
  }
}

function show(state) {
  const silent = state.silent_s === null ? `No policy node is heard as ${state.node}. Is it configured and active, in this ROS domain?`
    : state.silent_s > SILENT_S ? `Nothing heard from ${state.node} for ${state.silent_s.toFixed(0)} s.` : "";
  if (state.policy) showPolicy(state);
  if (state.status) showStatus(state);
  notice(state.status && state.status.state === "inactive" ? "" : silent);
  showStages(state);
  showEvents(state.events);
}

function showPolicy({ policy, node }) {
  byId("about").textContent = `${policy.policy} on ${policy.device}, mode ${policy.rtc_mode}, H ${policy.action_horizon}, ` +
    `s ${policy.execution_horizon}, ${(1 / policy.dt).toFixed(0)} Hz, ${node}, checkpoint ${policy.checkpoint}, settings ${policy.config}`;
  const identity = JSON.stringify([policy.joints, policy.cameras]);
  if (identity === kept.policy) return;
  kept.policy = identity;
  byId("unit").textContent = `(${[...new Set(policy.units)].join(", ")})`;
  byId("joints").replaceChildren(...policy.joints.map((name, index) => {
    const box = document.createElement("input"), field = make("label");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => (box.checked ? kept.hidden.delete(index) : kept.hidden.add(index)));
    field.style.color = JOINT_COLOURS[index % JOINT_COLOURS.length];
    field.append(box, name);
    return field;
  }));
  byId("cameras").replaceChildren(...policy.cameras.map((key) => {
    const figure = document.createElement("figure"), image = document.createElement("img"), caption = make("figcaption", key);
    image.id = `camera-${key}`;
    image.alt = `newest picture of the camera ${key}`;
    caption.append(make("span"));
    figure.append(image, caption);
    return figure;
  }));
}

function showStatus(state) {
  const status = state.status, joints = state.policy ? state.policy.joints.length : 0;
  byId("state").textContent = status.state;
  byId("state").className = `state ${status.state}`;
  byId("reason").textContent = status.text === status.state ? status.prompt : `${status.text} (${status.reason})`;
  byId("bound").textContent = status.bound === "unknown" ? "" : `${status.bound}-bound, margin ${Number(status.margin_p50).toFixed(2)}`;
  byId("words").textContent = state.words.join(" ");
  drawRoofline(byId("roofline"), kept.points, status);
  const shown = Array.from({ length: joints }, (_, i) => i).filter((i) => !kept.hidden.has(i));
  if (state.policy) drawMotion(byId("motion"), kept.rows, state.chunk, state.swaps, shown, state.policy.dt);
  fillTable("counters", Object.entries(COUNTERS).map(([name, text]) =>
    [make("td", text), make("td", `${status[name]}`, BAD.includes(name) && status[name] ? "number nonzero" : "number")]));
  showInputs(state);
}

function showInputs({ status, policy }) {
  fillTable("inputs", status.inputs.map((input) => {
    const late = input.age_s === null || input.age_s > 0.2, offset = input.offset_s === null ? "" : `≥ ${milliseconds(input.offset_s)}`;
    return [make("td", input.name), make("td", input.age_s === null ? "nothing yet" : milliseconds(input.age_s), late ? "number late" : "number"),
      make("td", offset, "number")];
  }));
  const heads = [make("th", "input"), make("th", "age", "number"), make("th", "arrival − stamp", "number")], line = document.createElement("tr");
  line.append(...heads);
  byId("inputs").tBodies[0].prepend(line);
  if (!policy || kept.polls % PICTURES_EVERY) return;
  policy.cameras.forEach((key, index) => {
    const image = byId(`camera-${key}`), input = status.inputs[index];  // cameras come first, in the same order
    image.src = `camera?key=${encodeURIComponent(key)}&poll=${kept.polls}`;
    const age = image.parentElement.querySelector("span");
    age.textContent = input && input.age_s !== null ? `${milliseconds(input.age_s)} old` : "no picture yet";
    age.className = input && input.age_s > 0.2 ? "late" : "";
  });
}

function showStages({ stages, last }) {
  byId("critical").textContent = last ? `together ${milliseconds(last.l_critical) || "unknown"} (${last.l_critical_how})` : "";
  const longest = Math.max(0.001, ...stages.map((stage) => Math.max(stage.last || 0, stage.p99 || 0)));
  fillTable("stages", stages.map((stage) => {
    const cell = make("td"), bar = make("div", "", `bar ${stage.group} ${stage.how}`);
    if (stage.last !== null) {
      const fill = make("i"), limit = make("b");
      fill.style.width = `${(100 * stage.last) / longest}%`;
      limit.style.left = `calc(${(100 * stage.p99) / longest}% - 2px)`;
      bar.append(fill, limit);
    } else bar.append(make("span", "unknown", "absent"));
    cell.append(bar);
    return [make("td", stage.label), cell, ...["last", "p50", "p99"].map((name) => make("td", milliseconds(stage[name]), "number"))];
  }));
}

function showEvents(events) {
  fillTable("events", events.map((event) =>
    [make("td", new Date(1000 * event.stamp_s).toLocaleTimeString(), "number"), make("td", event.state), make("td", event.text === event.state ? "" : event.text)]));
}

refresh();
setInterval(refresh, POLL_MS);
document.addEventListener("visibilitychange", refresh);
window.addEventListener("resize", () => kept.state && show(kept.state));
