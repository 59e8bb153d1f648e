// The page of the service: asks it for translations, and shows what it answers. Texts are set as text only.
const at = (id) => document.getElementById(id);
const abilities = { beam: 1, attention: false }; // until the service has said more
let latest = 0; // answers to earlier questions come too late

// What the service answers, or an Error with its words.
async function ask(path, question) {
  const options = question && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question) };
  let response, answer;
  try {
    response = await fetch(path, options);
    answer = await response.json();
  } catch {
    throw new Error("The service does not answer.");
  }
  if (!response.ok) throw Object.assign(new Error(`The service says: ${answer.error}.`), { status: response.status });
  return answer;
}

async function translate(text) {
  const question = { text, n_best: abilities.beam, attention: abilities.attention };
  try {
    return [await ask("translate", question), "This model shows none."];
  } catch (error) {
    if (error.status !== 413 || !question.attention) throw error;
    return [await ask("translate", { ...question, attention: false }), error.message]; // it may be the attention alone
  }
}

// A tree in brackets as boxes in boxes, each with its label above what is in it.
function drawTree(tree) {
  const open = [document.createElement("div")];
  for (const [token] of tree.matchAll(/\([^\s()]*|\)|[^\s()]+/g)) {
    const box = Object.assign(document.createElement("span"), { className: "node" });
    if (token === ")") open.pop();
    else if (token[0] === "(") {
      box.append(Object.assign(document.createElement("small"), { textContent: token.slice(1) }));
      const inside = document.createElement("span");
      box.append(inside);
      open.at(-1).append(box);
      open.push(inside);
    } else open.at(-1).append(token);
  }
  return open[0];
}

function show({ text, n_best, tree, attention, note }, unseen) {
  at("translation").textContent = text;
  at("tree").replaceChildren(...(tree ? [drawTree(tree)] : []));
  at("candidates").replaceChildren(...n_best.map((candidate) => {
    const row = document.createElement("tr");
    const cells = [candidate.text, candidate.score.toFixed(3), candidate.log_probability.toFixed(3)];
    cells.forEach((content, column) => {
      const cell = row.insertCell();
      cell.textContent = content;
      if (column) cell.className = "number";
    });
    return row;
  }));
  at("unseen").textContent = attention ? "" : note ?? unseen;
  if (attention) drawAttention(at("attention"), attention);
  else at("attention").replaceChildren();
  at("result").hidden = false;
}

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const mine = ++latest;
  at("message").textContent = "";
  at("button").disabled = true;
  at("result").ariaBusy = "true";
  try {
    const [answer, unseen] = await translate(at("text").value);
    if (mine === latest) show(answer.translations[0], unseen);
  } catch (error) {
    if (mine !== latest) return;
    at("result").hidden = true;
    at("message").textContent = error.message;
  } finally {
    if (mine === latest) {
      at("button").disabled = false;
      at("result").ariaBusy = "false";
    }
  }
});
at("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("form").requestSubmit();
});
ask("health").then((health) => {
  Object.assign(abilities, health);
  const languages = [health.source_language, health.target_language];
  if (languages.every(Boolean)) {
    document.title = at("title").textContent = `Translate ${languages.join(" \u2192 ")}`;
    at("text").lang = languages[0];
    at("translation").lang = at("candidates").lang = languages[1];
  }
  const count = health.parameters ? `${health.parameters.toLocaleString("en")} parameters, ` : "";
  at("about").textContent = `${health.model}, step ${health.step}, ${count}beam ${health.beam}, on ${health.device}`;
}, (error) => { at("message").textContent = error.message; });
