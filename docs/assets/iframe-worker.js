// Search in pages that are opened from disk: from file:// browsers start no worker, so that of the search runs in a hidden frame.
if (location.protocol === "file:")
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((resolve, reject) => {
        this.frame.onload = () => {
          const inside = this.frame.contentWindow, script = inside.document.createElement("script");
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          Object.assign(script, { src: address, onload: resolve, onerror: reject });
          inside.document.body.append(script);
        };
      });
      document.body.append(this.frame);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
