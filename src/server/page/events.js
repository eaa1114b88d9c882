// Requests to the server and the events of its streams.

export function headers(key) {
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

export async function failure(response) {
  try {
    const { error } = await response.json();
    if (response.status === 401) return `${error.message} (see Settings)`;
    return error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

// Server-sent events whose data is JSON, up to [DONE].
export async function* readEvents(response) {
  if (!response.ok) throw new Error(await failure(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue;
      const data = event.slice(6);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}
