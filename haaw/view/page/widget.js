// The notebook's side of the page: a frame that may run scripts and nothing else, and the messages between it and
// Python. This file is no part of the page; anywidget loads it.

function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.title = "HAAW: one request, followed";
  frame.sandbox = "allow-scripts";
  frame.style.cssText = "display: block; width: 100%; border: 1px solid #8886; border-radius: 4px";
  const resize = () => (frame.style.height = `${model.get("height")}px`);
  const hear = (event) => {
    if (event.source === frame.contentWindow && event.data?.haaw === "ask") model.send(event.data);
  };
  const answer = (message) => {
    if (message.haaw === "said") frame.contentWindow?.postMessage(message, "*");
  };
  resize();
  frame.srcdoc = model.get("page");
  addEventListener("message", hear);
  model.on("msg:custom", answer);
  model.on("change:height", resize);
  el.append(frame);
  return () => {
    removeEventListener("message", hear);
    model.off("msg:custom", answer);
    model.off("change:height", resize);
  };
}

export default { render };
