//! Limits redirects to addresses of the public internet.

use outside::is_public;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// A resolver that returns public addresses only, so that a host name cannot lead into a private network.
#[derive(Debug, Default)]
pub struct PublicOnly(DefaultResolver);

impl Resolver for PublicOnly {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let all = self.0.resolve(uri, config, timeout)?;
        let mut public = self.empty();
        for address in all.iter().filter(|address| is_public(address.ip())) {
            public.push(*address);
        }
        if public.is_empty() {
            let text = format!("{} has no public address", uri.host().unwrap_or_default());
            return Err(ureq::Error::Io(std::io::Error::new(std::io::ErrorKind::PermissionDenied, text)));
        }
        Ok(public)
    }
}
