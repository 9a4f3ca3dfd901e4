/* Search in a site that is opened from a folder: browsers start no Worker there, so the worker's script runs in a hidden frame.
 * The name is the one that Material's plugin `offline` looks for; without it the page would fetch a shim from another host. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write("<body></body>");
      inside.document.close();
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = new URL(address, location.href).href;
      script.onload = () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      };
      inside.document.body.append(script);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
