// SPDX-License-Identifier: Apache-2.0
// Search in a page that is opened as a file. A browser starts no worker from a file, so the worker's script runs in a
// hidden frame, which has messages in both directions as a worker has.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = (this.inside = frame.contentWindow);
      inside.postMessage = (data) => {
        const message = new MessageEvent("message", { data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      };
      const script = inside.document.createElement("script");
      this.ready = new Promise((resolve, reject) => ([script.onload, script.onerror] = [resolve, reject]));
      script.src = url;
      inside.document.documentElement.append(script);
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
