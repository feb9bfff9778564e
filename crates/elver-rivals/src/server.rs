use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io::Read;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};

use crate::codec::Raw;

/// Serves until the input ends. What is here is what tonic's own server does for a connection, less its
/// router.
pub(crate) async fn serve(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| address.to_string())?;
    println!("ready {}", listener.local_addr()?);
    let (tell, mut told) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(tell);
    });
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // Whoever is still connected is cut off.
            _ = &mut told => return Ok(()),
        };
        let (stream, _) = accepted?;
        stream.set_nodelay(true)?;
        let connection = http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service_fn(echo));
        tokio::spawn(async {
            // One that its client breaks is the client's affair.
            let _ = connection.await;
        });
    }
}

/// What code generated from a description would be.
async fn echo(request: http::Request<Incoming>) -> Result<http::Response<Body>, Infallible> {
    Ok(Grpc::new(Raw).unary(Answer, request).await)
}

struct Answer;

impl UnaryService<Bytes> for Answer {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}
