//! A headless Chromium, told what to do over its DevTools protocol
//! (<https://chromedevtools.github.io/devtools-protocol/>), and what it said meanwhile.
//!
//! Main types: [`Browser`]. Neighbours: `main` has the tests.
//!
//! With `--remote-debugging-pipe` Chromium reads commands from file descriptor 3 and answers on 4, JSON texts that end
//! with a zero byte: so there is no port and no socket, and what a test needs is here.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

/// Names of the program, the first that is found counts. Debian's is the first.
const NAMES: &[&str] = &["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// Set to `required` where a missing browser is a failure.
const WISH: &str = "CONCERTINA_BROWSER";
/// Longest wait for an answer, before a test fails rather than hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Moves its own input and output to where Chromium looks for the pipe, and starts it.
const PLUMBING: &str = "exec \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null";

/// A browser with one page.
pub(crate) struct Browser {
    process: Child,
    commands: ChildStdin,
    answers: Receiver<Value>,
    session: Option<String>,
    commands_sent: u64,
    /// Events since the last look.
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts the browser that is installed; none if there is none and none is required.
    pub(crate) fn start() -> Option<Self> {
        let Some(program) = installed() else {
            assert!(
                env::var_os(WISH).is_none_or(|wish| wish != "required"),
                "no Chromium: looked for {NAMES:?}"
            );
            // Straight to the terminal: the output of a test that passes is not shown.
            let notice = "skipped: no Chromium to look at the page with (Debian: apt-get install chromium)";
            let _ = writeln!(io::stderr(), "{notice}");
            return None;
        };
        let profile = tempfile::tempdir().expect("a directory");
        let mut process = Command::new("sh")
            .args(["-c", PLUMBING, "sh"])
            .arg(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--disable-dev-shm-usage", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let commands = process.stdin.take().expect("a pipe");
        let mut output = BufReader::new(process.stdout.take().expect("a pipe"));
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|bytes| bytes > 0) {
                message.pop();
                let value = serde_json::from_slice(&message).expect("an answer in JSON");
                message.clear();
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            process,
            commands,
            answers,
            session: None,
            commands_sent: 0,
            events: Vec::new(),
            _profile: profile,
        };
        browser.open();
        Some(browser)
    }

    fn open(&mut self) {
        let target = self.tell("Target.createTarget", json!({"url": "about:blank"}));
        let attached =
            self.tell("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}));
        self.session = Some(attached["sessionId"].as_str().expect("a session").to_owned());
        for domain in ["Page.enable", "Runtime.enable", "Log.enable", "Network.enable"] {
            self.tell(domain, json!({}));
        }
        self.tell("Page.setLifecycleEventsEnabled", json!({"enabled": true}));
    }

    fn next(&mut self, wanted: &str) -> Value {
        self.answers.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("no answer to {wanted}: {error}"))
    }

    /// Sends a command, and waits for what comes of it.
    pub(crate) fn tell(&mut self, method: &str, parameters: Value) -> Value {
        self.commands_sent += 1;
        let id = self.commands_sent;
        let mut command = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            command["sessionId"] = session.as_str().into();
        }
        let mut text = command.to_string().into_bytes();
        text.push(0);
        self.commands.write_all(&text).and_then(|()| self.commands.flush()).expect("the browser listens");
        loop {
            let answer = self.next(method);
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method} {parameters}: {answer}");
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    /// A screen of this size, light or dark; narrow ones are touched with fingers.
    pub(crate) fn screen(&mut self, width: u32, scheme: &str) {
        let mobile = width < 700;
        let metrics = json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": mobile});
        self.tell("Emulation.setDeviceMetricsOverride", metrics);
        self.tell("Emulation.setTouchEmulationEnabled", json!({"enabled": mobile}));
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.tell("Emulation.setEmulatedMedia", features);
    }

    /// Opens a file and waits until it is there.
    pub(crate) fn visit(&mut self, path: &Path) {
        let url = format!("file://{}", path.display());
        let went = self.tell("Page.navigate", json!({"url": url}));
        assert!(went["errorText"].is_null(), "{url}: {went}");
        let loader = went["loaderId"].clone();
        let done = |event: &Value| {
            event["method"] == "Page.lifecycleEvent"
                && event["params"]["name"] == "load"
                && event["params"]["loaderId"] == loader
        };
        if self.events.iter().any(done) {
            return;
        }
        loop {
            let event = self.next(&url);
            let is_done = done(&event);
            self.events.push(event);
            if is_done {
                return;
            }
        }
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let told = self.tell("Runtime.evaluate", parameters);
        assert!(told["exceptionDetails"].is_null(), "{expression}: {told}");
        told["result"]["value"].clone()
    }

    /// The text of an expression in the page.
    pub(crate) fn text(&mut self, expression: &str) -> String {
        let value = self.value(expression);
        value.as_str().unwrap_or_else(|| panic!("{expression} is no text: {value}")).to_owned()
    }

    /// Points at a place in the page: a finger or a mouse.
    pub(crate) fn point(&mut self, x: f64, y: f64, finger: bool) {
        if finger {
            self.tell(
                "Input.dispatchTouchEvent",
                json!({"type": "touchStart", "touchPoints": [{"x": x, "y": y}]}),
            );
            self.tell("Input.dispatchTouchEvent", json!({"type": "touchEnd", "touchPoints": []}));
        } else {
            self.tell("Input.dispatchMouseEvent", json!({"type": "mouseMoved", "x": x, "y": y}));
        }
    }

    /// Presses a key that has no text.
    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["rawKeyDown", "keyUp"] {
            self.tell("Input.dispatchKeyEvent", json!({"type": kind, "key": key, "code": key}));
        }
    }

    /// What went wrong since the last look: errors and warnings on the console, exceptions, requests that went
    /// elsewhere than to files and to data in the page itself.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        // All that the page said before this answer is there with it.
        self.value("0");
        let wrong = |event: &Value| {
            let parameters = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" => Some(event.to_string()),
                "Runtime.consoleAPICalled" => Some(event.to_string()),
                "Log.entryAdded" => Some(parameters["entry"].to_string()),
                "Network.requestWillBeSent" => {
                    let url = parameters["request"]["url"].as_str()?;
                    (!url.starts_with("file:") && !url.starts_with("data:"))
                        .then(|| format!("asked for {url}"))
                }
                _ => None,
            }
        };
        std::mem::take(&mut self.events).iter().filter_map(wrong).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Without its pipe it would end, too; a killed one leaves its profile alone at once.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn installed() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let candidates = NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    candidates.into_iter().find(|candidate| candidate.is_file())
}
