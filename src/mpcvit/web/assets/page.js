"use strict";

const find = (id) => document.getElementById(id);
const previews = new Map(); // addresses of pictures that this tab has dropped, by their number
const PHASES = {
  connecting: "Connecting to the other side",
  compiling: "Preparing the network, once for these pictures",
  rehearsing: "Preparing the random numbers, once for this network",
  "waiting for the other party": "Waiting for the other side",
  "ordering randomness": "Asking the dealer for random numbers",
  "waiting for randomness": "Waiting for the dealer's random numbers",
  "sharing weights": "Taking shares of the other side's model",
  "setting up the protocol": "Preparing the encryption",
  running: "Classifying",
};
const begun = (words) => words.charAt(0).toUpperCase() + words.slice(1);
const STATES = { waiting: "waits", running: "is being classified", failed: "no answer" };
let latest = { pictures: [], phase: null, records: 0, most_bytes: Infinity };

const complain = (sentence) => {
  find("trouble").textContent = sentence;
  find("trouble").hidden = !sentence;
};

const ask = async (path, options) => {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("The command behind this page has ended. Start it again, and open its new address.");
  }
  if (!answer.ok) {
    const { sentence } = await answer.json().catch(() => ({}));
    throw new Error(sentence || `The command behind this page answers with ${answer.status}.`);
  }
  return answer.status === 204 ? null : answer.json();
};

const add = (parent, tag, name, text) => {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = text;
  parent.append(made);
  return made;
};

const card = (picture) => {
  const item = document.createElement("li");
  item.className = picture.state;
  if (previews.has(picture.number)) {
    const image = add(item, "img", "", "");
    image.src = previews.get(picture.number);
    image.alt = picture.name;
    image.addEventListener("error", () => image.remove());
  }
  add(item, "p", "name", picture.name);
  add(item, "p", "answer", picture.words || STATES[picture.state]);
  if (picture.seconds !== null) add(item, "p", "seconds", `${picture.seconds.toFixed(1)} s`);
  return item;
};

const draw = (state) => {
  find("promise").textContent = state.promise;
  const { pictures, phase } = state;
  if (JSON.stringify(pictures) !== JSON.stringify(latest.pictures)) {
    find("pictures").replaceChildren(...pictures.map(card));
  }
  latest = state;
  const has = (name) => pictures.some((picture) => picture.state === name);
  find("progress").hidden = !has("running");
  const [bar, words] = find("progress").children;
  if (phase && phase.total > 1) {
    bar.max = phase.total;
    bar.value = phase.done;
  } else {
    bar.removeAttribute("value");
  }
  const [done, asked] = [["done"], ["done", "running"]].map(
    (states) => pictures.filter((picture) => states.includes(picture.state)).length);
  const what = (phase ? PHASES[phase.what] || begun(phase.what) : PHASES.connecting)
    + (phase && phase.what === "running" ? `: ${done} of ${asked} have an answer` : "");
  if (words.textContent !== what) words.textContent = what;
  find("again").hidden = !has("failed");
  find("save-answers").hidden = !has("done");
  find("save-record").hidden = !state.records;
};

const look = async () => {
  draw(await ask("state"));
};

const take = async (files) => {
  complain("");
  try {
    for (const file of files) {
      const headers = { "X-Name": encodeURIComponent(file.name) };
      try {
        // the browser would not show an answer that comes before it has sent all
        if (file.size > latest.most_bytes) {
          throw new Error(`the file is larger than ${Math.floor(latest.most_bytes / 1e6)} MB`);
        }
        const { number } = await ask("pictures", { method: "POST", headers, body: file });
        previews.set(number, URL.createObjectURL(file));
      } catch (error) {
        complain(`${file.name}: ${error.message}`);
      }
    }
    await ask("start", { method: "POST" });
    await look();
  } catch (error) {
    complain(error.message);
  }
};

const save = (name, content, type) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
};

// a spreadsheet must not take a file's name for a formula
const quote = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;

find("files").addEventListener("change", (event) => {
  take([...event.target.files]);
  event.target.value = "";
});
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    find("drop").classList.toggle("over", kind === "dragenter" || kind === "dragover");
    if (kind === "drop") take([...event.dataTransfer.files]);
  });
}
find("again").addEventListener("click", () => take([]));
find("save-answers").addEventListener("click", () => {
  const rows = latest.pictures.map(({ name, words }) => [name, words].map(quote).join(","));
  save("answers.csv", ["picture,answer", ...rows, ""].join("\n"), "text/csv");
});
find("save-record").addEventListener("click", async () => {
  try {
    save("record.json", `${JSON.stringify(await ask("record.json"), null, 1)}\n`, "application/json");
  } catch (error) {
    complain(error.message);
  }
});

const watch = async () => {
  try {
    await look();
    setTimeout(watch, 400);
  } catch (error) {
    complain(error.message);
    setTimeout(watch, 3000);
  }
};
watch();
