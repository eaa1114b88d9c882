// A conversation: sends it to /v1/chat/completions and shows the answer as it comes.
import { headers, readEvents } from "./events.js";
import { showText } from "./text.js";

export class Chat {
  constructor(log, settings, onBusy) {
    this.log = log;
    this.settings = settings;
    this.onBusy = onBusy;
    this.turns = [];
    this.request = null;
  }

  get busy() {
    return this.request !== null;
  }

  stop() {
    this.request?.abort();
  }

  clear() {
    this.stop();
    this.turns = [];
    this.log.replaceChildren();
  }

  async ask(text) {
    this.turns.push({ role: "user", content: text });
    this.addTurn("user", text);
    const turn = this.addTurn("assistant", "");
    turn.classList.add("busy");
    this.request = new AbortController();
    this.onBusy(true);
    const answer = { text: "", started: performance.now(), first: null, usage: null, reason: null };
    try {
      await this.receive(turn, answer, this.request.signal);
      this.turns.push({ role: "assistant", content: answer.text });
    } catch (error) {
      this.settle(turn, answer, error);
    } finally {
      turn.classList.remove("busy");
      this.showMeta(turn, answer);
      this.request = null;
      this.onBusy(false);
    }
  }

  async receive(turn, answer, signal) {
    const { temperature, maxTokens, system, key } = this.settings();
    const messages = system ? [{ role: "system", content: system }, ...this.turns] : this.turns;
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers(key),
      signal,
      body: JSON.stringify({
        messages, temperature, max_tokens: maxTokens, stream: true, stream_options: { include_usage: true },
      }),
    });
    for await (const event of readEvents(response)) {
      if (event.error) throw new Error(event.error.message);
      answer.usage = event.usage ?? answer.usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      answer.reason = choice.finish_reason ?? answer.reason;
      if (!choice.delta.content) continue;
      answer.first ??= performance.now();
      answer.text += choice.delta.content;
      this.show(turn, answer.text);
    }
  }

  settle(turn, answer, error) {
    if (error.name === "AbortError") {
      answer.reason = "stopped";
      if (answer.text) this.turns.push({ role: "assistant", content: answer.text });
      else this.turns.pop();
      return;
    }
    this.turns.pop();
    turn.classList.add("failed");
    this.show(turn, error.message);
  }

  addTurn(role, text) {
    const turn = document.createElement("article");
    turn.className = `turn ${role}`;
    const body = document.createElement("div");
    body.className = "text";
    turn.append(body);
    this.log.append(turn);
    this.show(turn, text);
    this.log.scrollTop = this.log.scrollHeight;
    return turn;
  }

  show(turn, text) {
    const nearEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 80;
    showText(turn.querySelector(".text"), text);
    if (nearEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  showMeta(turn, answer) {
    const meta = document.createElement("p");
    meta.className = "meta";
    const parts = [];
    if (answer.usage) {
      parts.push(`${answer.usage.completion_tokens} tokens`);
      const seconds = (performance.now() - (answer.first ?? answer.started)) / 1000;
      if (answer.usage.completion_tokens > 1 && seconds > 0)
        parts.push(`${((answer.usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s`);
    }
    if (answer.first) parts.push(`first after ${Math.round(answer.first - answer.started)} ms`);
    if (answer.reason && answer.reason !== "stop") parts.push(answer.reason);
    meta.textContent = parts.join(" · ");
    turn.append(meta);
  }
}
