//! A function of AWS's own client for Rust, the crate `lambda_runtime`, as it is written for Lambda; `runtime = "provided"`
//! starts it. What it does, its event says: it echoes, fails, panics, answers much or bit by bit, or READs 8 bytes of a
//! peer's memory, with the RDMA that elver-handler has for processes that are not forked.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use elver_handler::Rdma;
use elver_handler::elver::RemoteAddr;
use lambda_runtime::streaming::{Body, Sender, channel};
use lambda_runtime::{
    BoxFuture, Error, FunctionResponse, LambdaEvent, Runtime, SnapStartResource, StreamResponse,
    service_fn,
};
use serde_json::{Value, json};

/// What outlives a request: the process has one after the other.
#[derive(Clone, Default)]
struct Function {
    calls: Rc<Cell<u64>>,
    rdma: Rc<RefCell<Option<Rdma>>>,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    if let Ok(why) = std::env::var("FAILS") {
        return Err(why.into());
    }
    let function = Function::default();
    let service = service_fn(move |event| function.clone().answer(event));
    Runtime::new(service).register_snapstart_resource(Arc::new(Snapshot)).run().await
}

impl Function {
    async fn answer(
        self,
        event: LambdaEvent<Value>,
    ) -> Result<FunctionResponse<Value, Body>, Error> {
        self.calls.set(self.calls.get() + 1);
        let (event, context) = event.into_parts();
        if let Some(why) = event["fail"].as_str() {
            return Err(why.into());
        }
        assert!(event["panic"] != true, "as it was asked to");
        if event["abort"] == true {
            std::process::abort();
        }
        if let Some(bytes) = event["bytes"].as_u64() {
            return Ok(FunctionResponse::BufferedResponse("x".repeat(bytes as usize).into()));
        }
        if let Some(parts) = event["stream"].as_u64() {
            let (sender, body) = channel();
            tokio::spawn(stream(sender, parts, event["breaks"] == true));
            return Ok(FunctionResponse::StreamingResponse(StreamResponse::from(body)));
        }
        let left = context.deadline().duration_since(SystemTime::now()).unwrap_or(Duration::ZERO);
        let mut answer = json!({
            "pid": std::process::id(), "calls": self.calls.get(), "config": &*context.env_config,
            "request": context.request_id, "arn": context.invoked_function_arn,
            "left_ms": left.as_millis() as u64, "trace": context.xray_trace_id,
            "environment": std::env::vars().collect::<std::collections::BTreeMap<_, _>>(),
        });
        if let Some(to) = event["to"].as_str() {
            answer["read"] = self.read(to, &event)?.into();
        }
        answer["event"] = event;
        Ok(FunctionResponse::BufferedResponse(answer))
    }

    /// The session is opened once, and is there for later requests.
    fn read(&self, to: &str, event: &Value) -> Result<String, Error> {
        let number = |name: &str| event[name].as_u64().ok_or(format!("the event has no {name}"));
        let from = RemoteAddr { addr: number("address")?, rkey: number("rkey")?.try_into()? };
        let mut opened = self.rdma.borrow_mut();
        let rdma = match opened.take() {
            Some(rdma) => opened.insert(rdma),
            None => opened.insert(Rdma::open()?),
        };
        rdma.read(to, 16, 8, from)?;
        let mut bytes = [0; 8];
        rdma.mr.read(16, &mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Parts of 1 KB, behind which the stream ends, or breaks.
async fn stream(mut sender: Sender, parts: u64, breaks: bool) {
    for part in 0..parts {
        let bytes = format!("{part:>1023}\n").into();
        if sender.send_data(bytes).await.is_err() {
            return;
        }
    }
    if breaks {
        sender.abort();
    }
}

/// What is to be done before and after a snapshot, where the platform says that it takes one.
struct Snapshot;

impl SnapStartResource for Snapshot {
    fn before_snapshot(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(hook("BEFORE_SNAPSHOT"))
    }

    fn after_restore(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(hook("AFTER_RESTORE"))
    }
}

async fn hook(variable: &str) -> Result<(), Error> {
    match std::env::var(variable) {
        Ok(why) => Err(why.into()),
        Err(_) => Ok(()),
    }
}
