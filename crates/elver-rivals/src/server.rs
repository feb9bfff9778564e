use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io::Read;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::{Result, anyhow};
use bytes::Bytes;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tower_service::Service;

use crate::codec::Raw;

/// Serves until the input ends.
pub(crate) async fn serve(address: SocketAddr) -> Result<()> {
    let incoming = TcpIncoming::bind(address).map_err(|error| anyhow!("{address}: {error}"))?;
    let incoming = incoming.with_nodelay(Some(true));
    println!("ready");
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(tell);
    });
    let serving = Server::builder().add_service(Echo).serve_with_incoming(incoming);
    // Whoever is still connected is cut off.
    tokio::select! {
        served = serving => Ok(served?),
        _ = told => Ok(()),
    }
}

/// What code generated from a description would be.
#[derive(Clone, Copy, Debug)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "bench.Echo";
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async { Ok(Grpc::new(Raw).unary(Answer, request).await) })
    }
}

struct Answer;

impl UnaryService<Bytes> for Answer {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}
