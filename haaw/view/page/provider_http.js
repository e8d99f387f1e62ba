// What `haaw view` serves: everything is fetched from the address that the page itself came from.

import { floatsFrom } from "./values.js";

export class HttpProvider {
  async story() {
    return ask("story");
  }

  async step(stage, step) {
    return ask(`step?stage=${stage}&step=${step}`);
  }

  async calculator() {
    return ask("calculator");
  }

  async value(path, head) {
    const known = await ask(`value?path=${encodeURIComponent(path)}${head === null ? "" : `&head=${head}`}`);
    return { ...known, path, data: floatsFrom(known.data) };
  }
}

async function ask(what) {
  let answer;
  try {
    answer = await fetch(what, { cache: "no-store" });
  } catch {
    throw new Error("haaw view does not answer any more. Start it again and reload this page.");
  }
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error ?? `haaw view answered with status ${answer.status}.`);
  return said;
}
