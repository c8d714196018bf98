/* Search in pages that are opened from a folder: browsers start no worker there, so the script of
   the worker runs in a hidden frame, with the messages of a worker. Used for file: only. */
if (location.protocol === "file:") {
  window.IFrameWorker = class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      const loaded = new Promise((resolve) => frame.addEventListener("load", resolve, { once: true }));
      // postMessage of a worker takes no target, and goes to the page.
      frame.srcdoc = `<script>
        window.postMessage = (data) => parent.postMessage(data, "*");
      </script><script src="${new URL(url, location.href)}"></script>`;
      document.body.append(frame);
      this.deliver = (data) => loaded.then(() => {
        const message = new MessageEvent("message", { data });
        frame.contentWindow.dispatchEvent(message);
      });
      addEventListener("message", (event) => {
        if (event.source !== frame.contentWindow) return;
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
    }

    postMessage(data) {
      this.deliver(data);
    }

    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
