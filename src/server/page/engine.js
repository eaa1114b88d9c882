// The figures beside the conversation, from /props once and /metrics every second.
import { headers } from "./events.js";

const INTERVAL = 1000;
const HISTORY = 120;
const CELLS = 96;

const find = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en");

// Prometheus text: name{label="value"} number
function parseMetrics(text) {
  const out = new Map();
  for (const line of text.split("\n")) {
    const match = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map((m) => [m[1], m[2]]));
    if (!out.has(match[1])) out.set(match[1], []);
    out.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  return out;
}

const one = (metrics, name) => metrics.get(name)?.[0]?.value ?? 0;

function bar(label, figure, share, kind) {
  const element = document.createElement("div");
  element.className = "bar";
  element.innerHTML = '<p><span></span><span></span></p><div class="track"><i></i></div>';
  const [name, value] = element.querySelectorAll("span");
  name.textContent = label;
  value.textContent = figure;
  const fill = element.querySelector("i");
  fill.style.width = `${(100 * Math.min(1, share)).toFixed(1)}%`;
  if (kind) fill.classList.add(kind);
  return element;
}

function showFacts(props) {
  find("model").textContent = props.model;
  document.title = `${props.model} · kvant`;
  const { bytes_per_token: bytes, bytes_per_token_16bit: plain } = props.kv;
  find("saving").textContent = `${((100 * bytes) / plain).toFixed(0)} %`;
  const format = props.kv.format.split(":")[0];
  find("bytes").replaceChildren(
    bar(format, `${whole.format(Math.round(bytes))} bytes`, bytes / plain),
    bar("bf16", `${whole.format(Math.round(plain))} bytes`, 1, "other"),
  );
  const facts = {
    Cache: props.kv.format, Scales: props.kv.scales, Kernel: props.route, Device: props.device, Weights: props.weights,
    Context: `${whole.format(props.limits.context)} tokens`, "At once": String(props.limits.parallel),
  };
  find("facts").replaceChildren(
    ...Object.entries(facts).flatMap(([name, value]) => {
      const term = document.createElement("dt");
      const text = document.createElement("dd");
      term.textContent = name;
      text.textContent = value;
      return [term, text];
    }),
  );
}

function poolElement(pool) {
  let element = find("pools").querySelector(`[data-pool="${pool}"]`);
  if (element) return element;
  element = document.createElement("div");
  element.className = "pool";
  element.dataset.pool = pool;
  element.innerHTML = '<p><span></span><span></span></p><div class="cells" aria-hidden="true"></div>';
  find("pools").append(element);
  return element;
}

function showPools(metrics) {
  const used = metrics.get("kvant_pages_used") ?? [];
  for (const { labels, value } of metrics.get("kvant_pages") ?? []) {
    if (value === 0) continue;
    const taken = used.find((entry) => entry.labels.pool === labels.pool)?.value ?? 0;
    const element = poolElement(labels.pool);
    const [name, figure] = element.querySelectorAll("span");
    name.textContent = `${labels.pool} · ${labels.format.split(":")[0]}`;
    figure.textContent = `${whole.format(taken)} of ${whole.format(value)}`;
    const cells = element.querySelector(".cells");
    const count = Math.min(CELLS, value);
    while (cells.children.length < count) cells.append(document.createElement("i"));
    const lit = taken === 0 ? 0 : Math.max(1, Math.round((taken / value) * count));
    [...cells.children].forEach((cell, index) => cell.classList.toggle("used", index < lit));
  }
}

function showDrafts(metrics) {
  const drafted = metrics.get("kvant_drafted_tokens_total") ?? [];
  const accepted = metrics.get("kvant_accepted_tokens_total") ?? [];
  find("drafts-card").hidden = drafted.length === 0;
  const sum = (entries) => entries.reduce((total, entry) => total + entry.value, 0);
  find("acceptance").textContent = sum(drafted) ? `${((100 * sum(accepted)) / sum(drafted)).toFixed(0)} %` : "–";
  find("drafts").replaceChildren(
    ...drafted.map(({ labels, value }, index) => {
      const share = value ? accepted[index].value / value : 0;
      return bar(`place ${labels.position}`, `${(100 * share).toFixed(0)} %`, share);
    }),
  );
}

class Speed {
  constructor() {
    this.history = new Array(HISTORY).fill(0);
    this.last = null;
  }

  show(metrics) {
    const now = performance.now();
    const tokens = one(metrics, "kvant_generated_tokens_total");
    const rate = this.last ? (1000 * (tokens - this.last.tokens)) / (now - this.last.now) : 0;
    this.last = { now, tokens };
    this.history.push(rate);
    this.history.shift();
    find("speed").textContent = rate < 10 ? rate.toFixed(1) : rate.toFixed(0);
    const top = Math.max(1, ...this.history);
    const points = this.history.map((value, x) => `${(x * 120) / (HISTORY - 1)},${(31 - (29 * value) / top).toFixed(2)}`);
    const [area, stroke] = find("speed-line").children;
    stroke.setAttribute("d", `M${points.join("L")}`);
    area.setAttribute("d", `M0,32L${points.join("L")}L120,32Z`);
  }
}

function showCounts(metrics) {
  find("running").textContent = one(metrics, "kvant_requests_running");
  find("waiting").textContent = one(metrics, "kvant_requests_waiting");
  const reused = one(metrics, "kvant_reused_tokens_total");
  const read = one(metrics, "kvant_prompt_tokens_total");
  find("reused").textContent = `${read + reused ? ((100 * reused) / (read + reused)).toFixed(0) : 0} %`;
}

async function showState() {
  const response = await fetch("health");
  const { status, reason } = await response.json();
  find("state").dataset.state = response.ok ? "ok" : "busy";
  find("state").textContent = response.ok ? "ready" : (reason ?? status);
  return response.ok;
}

export function watchEngine(key) {
  const speed = new Speed();
  let known = false;
  const look = async () => {
    try {
      if (await showState()) {
        if (!known) {
          const props = await fetch("props", { headers: headers(key()) });
          if (props.ok) showFacts(await props.json());
          known = props.ok;
        }
        const response = await fetch("metrics", { headers: headers(key()) });
        if (response.ok) {
          const metrics = parseMetrics(await response.text());
          for (const show of [showPools, showDrafts, showCounts]) show(metrics);
          speed.show(metrics);
        }
      }
    } catch {
      find("state").dataset.state = "down";
      find("state").textContent = "the server does not answer";
    }
    setTimeout(look, INTERVAL);
  };
  look();
}
