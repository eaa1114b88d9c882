// Shows an answer: fenced blocks and inline code, everything else as it is. Never as HTML.

function inline(parent, text) {
  text.split(/(`[^`\n]+`)/).forEach((part) => {
    if (!/^`[^`\n]+`$/.test(part)) return parent.append(part);
    const code = document.createElement("code");
    code.textContent = part.slice(1, -1);
    parent.append(code);
  });
}

export function showText(element, text) {
  element.replaceChildren();
  text.split(/^```/m).forEach((part, index) => {
    if (index % 2 === 0) return inline(element, index === 0 ? part : part.replace(/^[^\n]*\n?/, ""));
    const block = document.createElement("pre");
    const code = document.createElement("code");
    code.textContent = part.replace(/^[^\n]*\n/, "").replace(/\n$/, "");
    block.append(code);
    element.append(block);
  });
}
