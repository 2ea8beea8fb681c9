//! A server that is only actix-web, to measure what the framework costs. It parses the body of a completion and answers with as many tokens
//! as were requested. A separate thread hands the tokens over one by one, as an engine would.

use std::sync::mpsc;

use actix_web::{App, HttpResponse, HttpServer, web};
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// A request as the thread sees it: the number of tokens, and the channel to send them to.
struct Wanted(u64, UnboundedSender<u64>);

async fn completions(engine: web::Data<mpsc::Sender<Wanted>>, body: web::Json<Value>) -> HttpResponse {
    let (sender, mut tokens) = unbounded_channel();
    if engine.send(Wanted(body["max_tokens"].as_u64().unwrap_or(16), sender)).is_err() {
        return HttpResponse::InternalServerError().finish();
    }
    if body["stream"] == true {
        let events = stream::unfold(tokens, |mut tokens| async {
            let token = tokens.recv().await?;
            let event = json!({"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": token.to_string()}]});
            Some((Ok::<_, std::io::Error>(Bytes::from(format!("data: {event}\n\n"))), tokens))
        });
        return HttpResponse::Ok().content_type("text/event-stream").streaming(Box::pin(events));
    }
    let mut text = String::new();
    while let Some(token) = tokens.recv().await {
        text += &token.to_string();
    }
    HttpResponse::Ok().json(json!({"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": text}]}))
}

/// Sends every request one token per round.
fn generate(requests: &mpsc::Receiver<Wanted>) {
    let mut running: Vec<(Wanted, u64)> = Vec::new();
    loop {
        if running.is_empty() {
            let Ok(first) = requests.recv() else { return };
            running.push((first, 0));
        }
        running.extend(requests.try_iter().map(|wanted| (wanted, 0)));
        running.retain_mut(|(Wanted(most, sender), sent)| {
            *sent += 1;
            sender.send(*sent).is_ok() && sent < most
        });
    }
}

#[actix_web::main]
async fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).expect("bare PORT");
    let (engine, requests) = mpsc::channel();
    std::thread::spawn(move || generate(&requests));
    let app = move || {
        let engine = web::Data::new(engine.clone());
        App::new().app_data(engine).route("/v1/completions", web::post().to(completions)).route("/ready", web::get().to(HttpResponse::Ok))
    };
    HttpServer::new(app).workers(1).bind(("127.0.0.1", port))?.run().await
}
