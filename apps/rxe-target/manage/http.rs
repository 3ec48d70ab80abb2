//! The part of HTTP that a scrape needs: one request and one answer per connection.

use rxe_inspect::server::{Client, Stream};

/// Maximum length of a request head in bytes.
const MAX_HEAD: usize = 8 << 10;
/// Maximum number of header lines.
const MAX_HEADERS: usize = 64;

/// Answers one request; `metrics` returns the text of `/metrics`, or an error.
pub fn serve<S: Stream>(mut client: Client<S>, metrics: impl FnOnce() -> Result<String, String>) {
    let mut head = Vec::new();
    let mut part = [0; 2048];
    let (status, kind, body, bodiless) = loop {
        match request(&head) {
            Parsed::Request { method, path } => {
                client.answering();
                let (status, kind, body) = respond(&method, &path, metrics);
                break (status, kind, body, method == "HEAD");
            }
            Parsed::Malformed => break ("400 Bad Request", PLAIN, "this is no HTTP request\n".to_owned(), false),
            Parsed::Partial => {}
        }
        match client.read(&mut part) {
            Ok(n @ 1..) if head.len() + n <= MAX_HEAD => head.extend_from_slice(&part[..n]),
            // Too long, too late, or disconnected.
            _ => return,
        }
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let answer = if bodiless { head } else { head + &body };
    // The client may have disconnected.
    let _ = client.answer(answer.as_bytes());
}

const PLAIN: &str = "text/plain; charset=utf-8";
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

enum Parsed {
    Request { method: String, path: String },
    Partial,
    Malformed,
}

fn request(head: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match (request.parse(head), request.method, request.path) {
        (Ok(httparse::Status::Complete(_)), Some(method), Some(path)) => {
            Parsed::Request { method: method.to_owned(), path: path.to_owned() }
        }
        (Ok(_), ..) => Parsed::Partial,
        (Err(_), ..) => Parsed::Malformed,
    }
}

fn respond(
    method: &str,
    path: &str,
    metrics: impl FnOnce() -> Result<String, String>,
) -> (&'static str, &'static str, String) {
    let path = path.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET" | "HEAD", "/metrics") => match metrics() {
            Ok(text) => ("200 OK", EXPOSITION, text),
            Err(sentence) => ("503 Service Unavailable", PLAIN, format!("{sentence}\n")),
        },
        ("GET" | "HEAD", _) => ("404 Not Found", PLAIN, "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", PLAIN, "GET is all that can be done here\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use rxe_inspect::server::{Clients, Deadlines};

    fn exchange(requests: &[&[u8]], metrics: Result<&str, &str>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let metrics = metrics.map(str::to_owned).map_err(str::to_owned);
        let server = Clients::new(Deadlines::DEFAULT, Arc::default()).admit(server).expect("a free slot");
        let serving = std::thread::spawn(move || serve(server, || metrics));
        for part in requests {
            // The server may have answered already.
            let _ = client.write_all(part);
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
        serving.join().unwrap();
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn a_scrape_may_arrive_in_any_number_of_pieces() {
        let answer = exchange(&[b"GET /metrics?x=1 HT", b"TP/1.1\r\nHost: a\r\n", b"\r\n"], Ok("a 1\n"));
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{answer}");
        assert!(answer.contains("Content-Length: 4\r\n") && answer.ends_with("\r\n\r\na 1\n"), "{answer}");
        let answer = exchange(&[b"HEAD /metrics HTTP/1.0\r\n\r\n"], Ok("a 1\n"));
        assert!(answer.contains("Content-Length: 4\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
    }

    #[test]
    fn other_requests_get_an_error_status() {
        let status = |request: &[u8], metrics| {
            let answer = exchange(&[request], metrics);
            answer.lines().next().unwrap_or_default().to_owned()
        };
        assert_eq!(status(b"GET / HTTP/1.1\r\n\r\n", Ok("")), "HTTP/1.1 404 Not Found");
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n", Ok("")), "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\n\r\n", Err("stopping")), "HTTP/1.1 503 Service Unavailable");
        assert_eq!(status(b"\x16\x03\x01\x02\x00", Ok("")), "HTTP/1.1 400 Bad Request");
        assert_eq!(status(&[b'A'; MAX_HEAD + 1], Ok("")), "", "hung up");
    }

    #[test]
    fn mutated_requests_are_read_alike_in_any_pieces() {
        let seed = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
        rxe_testkit::mutate::check_mutations("http", &[seed, b"HEAD / HTTP/1.0\r\n\r\n"], 8_000, |input| {
            let known = |head: &[u8]| match request(head) {
                Parsed::Partial => None,
                Parsed::Malformed => Some("400 Bad Request".to_owned()),
                Parsed::Request { method, path } => Some(respond(&method, &path, || Ok(String::new())).0.to_owned()),
            };
            let ends = (0..=input.len().min(MAX_HEAD)).step_by(1 + input.len() / 16);
            let mut first = None;
            for answer in ends.map(|end| known(&input[..end])) {
                assert!(first.is_none() || answer == first);
                first = answer;
            }
        });
    }
}
