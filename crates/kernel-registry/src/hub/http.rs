//! One request: what is sent where, which redirects are followed, and what its failure means.

use std::error::Error as _;
use std::time::Duration;

use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, LOCATION, RANGE, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use serde_json::Value;
use url::Url;

use super::retry::Failed;
use super::{API_TIMEOUT, Hub, LARGEST_ANSWER, MOST_REDIRECTS, innermost};
use crate::error::{Error, RequestContext};

/// How one request differs from a plain GET.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    /// Whether redirects may lead to another host, as those to file storage do.
    pub(super) elsewhere: bool,
    /// First byte that is wanted.
    pub(super) from: u64,
    /// Longest time for the whole answer.
    pub(super) timeout: Duration,
}

/// Follows redirects within one origin, for the client that `hf-hub` uses.
pub(super) fn same_origin_policy() -> reqwest::redirect::Policy {
    reqwest::redirect::Policy::custom(|attempt| {
        let first = attempt.previous().first();
        if attempt.previous().len() > MOST_REDIRECTS {
            attempt.error("too many redirects")
        } else if first.is_some_and(|first| first.origin() == attempt.url().origin()) {
            attempt.follow()
        } else {
            attempt.error("the answer leads to another host")
        }
    })
}

impl Hub {
    /// Sends a GET and follows redirects. The token goes to the Hub's own origin only. The answer
    /// has a status of success; `headers` of every answer on the way are shown to `inspect`.
    pub(super) async fn get(
        &self,
        address: &Url,
        ask: Ask,
        mut inspect: impl FnMut(&Url, &HeaderMap) -> Result<(), Error>,
    ) -> Result<Response, Failed> {
        let mut url = address.clone();
        for _ in 0..=MOST_REDIRECTS {
            let mut request = self
                .http
                .get(url.clone())
                .timeout(ask.timeout)
                // Sizes and hashes are those of the plain bytes.
                .header(ACCEPT_ENCODING, "identity");
            if ask.from > 0 {
                request = request.header(RANGE, format!("bytes={}-", ask.from));
            }
            if let Some(token) = &self.token
                && url.origin() == self.endpoint.origin()
            {
                request = request.header(AUTHORIZATION, format!("Bearer {}", token.secret()));
            }
            let answer = request
                .send()
                .await
                .map_err(|error| failed_request(&error, RequestContext::new(&url)))?;
            let status = answer.status();
            if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
                inspect(&url, answer.headers())?;
                return Ok(answer);
            }
            if !status.is_redirection() {
                return Err(failed_answer(&answer, &url));
            }
            inspect(&url, answer.headers())?;
            url = self.redirect(&url, &answer, ask.elsewhere)?;
        }
        Err(Failed::Fatal(Error::BadAnswer {
            context: RequestContext::new(address),
            reason: format!("more than {MOST_REDIRECTS} redirects"),
        }))
    }

    /// Where a redirect leads, if it may be followed.
    fn redirect(&self, from: &Url, answer: &Response, elsewhere: bool) -> Result<Url, Error> {
        let refuse = |reason: &str| {
            let mut context = RequestContext::new(from);
            context.status = Some(answer.status().as_u16());
            Error::BadAnswer {
                context,
                reason: reason.to_owned(),
            }
        };
        let location = answer
            .headers()
            .get(LOCATION)
            .and_then(|value| value.to_str().ok())
            .ok_or_else(|| refuse("it redirects without saying where"))?;
        let target = from
            .join(location)
            .map_err(|_| refuse("it redirects to something that is no address"))?;
        match (from.scheme(), target.scheme()) {
            (_, "https") | ("http", "http") => {}
            ("https", "http") => return Err(refuse("it redirects from https to http")),
            _ => return Err(refuse("it redirects to something that is not http")),
        }
        if !elsewhere && target.origin() != self.endpoint.origin() {
            return Err(refuse("it redirects to another host"));
        }
        Ok(target)
    }

    /// A JSON answer of the API and its headers.
    pub(super) async fn get_json(&self, url: &Url) -> Result<(Value, HeaderMap), Failed> {
        let ask = Ask {
            elsewhere: false,
            from: 0,
            timeout: API_TIMEOUT,
        };
        let _slot = self.slots.acquire().await;
        let mut answer = self.get(url, ask, |_, _| Ok(())).await?;
        let headers = answer.headers().clone();
        let mut body = Vec::new();
        let context = RequestContext::new(url);
        while let Some(piece) = answer
            .chunk()
            .await
            .map_err(|error| failed_request(&error, context.clone()))?
        {
            if body.len() + piece.len() > LARGEST_ANSWER {
                let reason = format!("it is larger than {LARGEST_ANSWER} bytes");
                return Err(Failed::Fatal(Error::BadAnswer { context, reason }));
            }
            body.extend_from_slice(&piece);
        }
        match serde_json::from_slice(&body) {
            Ok(value) => Ok((value, headers)),
            Err(error) => Err(Failed::Fatal(Error::BadAnswer {
                context,
                reason: format!("it is not JSON: {error}"),
            })),
        }
    }
}

/// A request without a complete answer: no connection, silence, or a broken stream.
pub(super) fn failed_request(error: &reqwest::Error, context: Box<RequestContext>) -> Failed {
    let reason = if error.is_timeout() {
        "timed out".to_owned()
    } else {
        innermost(error)
    };
    // An answer that arrived whole and is not what was asked for, such as an error page.
    if let Some(cause) = json_error(error) {
        let reason = if cause.is_data() {
            reason
        } else {
            format!("it is not JSON: {reason}")
        };
        return Failed::Fatal(Error::BadAnswer { context, reason });
    }
    if error.is_redirect() || error.is_builder() {
        return Failed::Fatal(Error::BadAnswer { context, reason });
    }
    Failed::Again {
        error: Error::Unreachable { context, reason },
        after: None,
    }
}

/// What the JSON parser said, where it was that which failed.
fn json_error(error: &reqwest::Error) -> Option<&serde_json::Error> {
    let mut cause = error.source();
    while let Some(source) = cause {
        if let Some(found) = source.downcast_ref() {
            return Some(found);
        }
        cause = source.source();
    }
    None
}

/// A status that means failure. Overload and faults of the server may pass.
pub(super) fn failed_status(context: Box<RequestContext>, after: Option<Duration>) -> Failed {
    let passing = matches!(context.status, Some(408 | 429 | 500 | 502 | 503 | 504));
    let error = Error::Http(context);
    if passing {
        Failed::Again { error, after }
    } else {
        Failed::Fatal(error)
    }
}

fn failed_answer(answer: &Response, url: &Url) -> Failed {
    let mut context = RequestContext::new(url);
    context.status = Some(answer.status().as_u16());
    let text = |name: &str| {
        answer
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };
    context.code = text("x-error-code");
    context.message = text("x-error-message");
    context.request_id = text("x-request-id");
    let after = answer
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .and_then(parse_retry_after);
    failed_status(context, after)
}

/// `Retry-After` in seconds. The form with a date is left to the usual pause.
fn parse_retry_after(text: &str) -> Option<Duration> {
    text.trim().parse().ok().map(Duration::from_secs)
}

/// The address of the next page in a `Link` header.
pub(super) fn next_page(headers: &HeaderMap) -> Option<&str> {
    headers
        .get_all(reqwest::header::LINK)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .find_map(|value| {
            value.split(',').find_map(|link| {
                let (address, parameters) = link.split_once(';')?;
                let next = parameters
                    .split(';')
                    .any(|parameter| matches!(parameter.trim(), "rel=\"next\"" | "rel=next"));
                let address = address.trim().strip_prefix('<')?.strip_suffix('>')?;
                next.then_some(address)
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found_among_links() {
        let mut headers = HeaderMap::new();
        assert_eq!(next_page(&headers), None);
        let links = "<http://h/a?x=1>; rel=\"first\", <http://h/b?cursor=2>; rel=\"next\"";
        headers.insert(reqwest::header::LINK, links.parse().unwrap());
        assert_eq!(next_page(&headers), Some("http://h/b?cursor=2"));
    }

    #[test]
    fn only_passing_failures_are_tried_again() {
        for (status, again) in [
            (429, true),
            (503, true),
            (404, false),
            (401, false),
            (501, false),
        ] {
            let mut context = RequestContext::new(&Url::parse("http://h/").unwrap());
            context.status = Some(status);
            let failed = failed_status(context, None);
            assert_eq!(matches!(failed, Failed::Again { .. }), again, "{status}");
        }
    }
}
