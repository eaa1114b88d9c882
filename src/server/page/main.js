// Wires the page: keys, theme, the conversation, and the figures beside it.
import { Chat } from "./chat.js";
import { watchEngine } from "./engine.js";

const find = (id) => document.getElementById(id);
const prompt = find("prompt");

function number(id, fallback) {
  const value = Number(find(id).value);
  return Number.isFinite(value) ? value : fallback;
}

const settings = () => ({
  temperature: number("temperature", 0.7),
  maxTokens: Math.max(1, Math.round(number("max-tokens", 512))),
  system: find("system").value.trim(),
  key: find("key").value,
});

// The key stays in this tab.
find("key").value = sessionStorage.getItem("kvant-key") ?? "";
find("key").addEventListener("input", () => sessionStorage.setItem("kvant-key", find("key").value));

const chat = new Chat(find("log"), settings, (busy) => {
  find("send").hidden = busy;
  find("stop").hidden = !busy;
});

function fitPrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

function send() {
  const text = prompt.value.trim();
  if (!text || chat.busy) return;
  prompt.value = "";
  fitPrompt();
  find("empty")?.remove();
  chat.ask(text);
}

// The browser's own theme until another one is chosen here.
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";

function nameTheme() {
  find("theme").setAttribute("aria-pressed", String(isDark()));
  find("theme").textContent = isDark() ? "Light" : "Dark";
}

function toggleTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  localStorage.setItem("kvant-theme", document.documentElement.dataset.theme);
  nameTheme();
}

find("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
find("stop").addEventListener("click", () => chat.stop());
find("new-chat").addEventListener("click", () => chat.clear());
find("theme").addEventListener("click", toggleTheme);
prompt.addEventListener("input", fitPrompt);
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "");
  if (event.key === "Escape") chat.stop();
  else if (event.key === "/" && !typing) {
    event.preventDefault();
    prompt.focus();
  } else if (event.altKey && event.code === "KeyN") chat.clear();
  else if (event.altKey && event.code === "KeyD") toggleTheme();
});

const remembered = localStorage.getItem("kvant-theme");
if (remembered) document.documentElement.dataset.theme = remembered;
systemDark.addEventListener("change", nameTheme);
nameTheme();
watchEngine(() => settings().key);
