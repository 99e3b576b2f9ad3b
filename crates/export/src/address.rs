//! Where clients reach an export.
//!
//! Invariants: what is in use, or is no socket, is an error and stays as it is; only a socket on
//! which nobody listens is removed.

use crate::failure::Failure;
use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The longest path of a socket, without the zero at its end.
const PATH_MAX: usize = 107;
const FORMS: &str = "an address is unix:PATH or HOST:PORT, such as unix:/tmp/x.sock or [::1]:10809";

/// A well-formed address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl Address {
    /// `unix:PATH` or `HOST:PORT`.
    pub fn parse(text: &str) -> Result<Address, Failure> {
        let malformed = || Failure::usage(format!("{text:?} is not an address")).fix(FORMS);
        if let Some(path) = text.strip_prefix("unix:") {
            let path = std::path::absolute(path).map_err(|_| malformed())?;
            return match path.as_os_str().len() {
                0..=PATH_MAX => Ok(Address::Unix(path)),
                _ => Err(Failure::new(format!(
                    "the path of the socket is longer than {PATH_MAX} bytes"
                ))
                .fix("choose a shorter one")),
            };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(malformed)?;
        let port = match port.parse() {
            // A number may begin with a plus sign for `parse`.
            Ok(number) if number > 0 && !port.starts_with('+') => number,
            _ => return Err(malformed()),
        };
        let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        match bracketed {
            Some(host) => match host.parse::<IpAddr>() {
                Ok(ip) if ip.is_ipv6() => Ok(Address::Tcp(SocketAddr::new(ip, port))),
                _ => Err(malformed()),
            },
            None if host.is_empty() || host.contains(':') => Err(malformed()),
            None => resolve(host, port),
        }
    }

    /// Whether it can be listened on. Removes a socket that is left of an earlier export.
    pub fn check(&self) -> Result<(), Failure> {
        match self {
            Address::Unix(path) => check_path(path),
            Address::Tcp(address) => match TcpListener::bind(address) {
                Ok(_) => Ok(()),
                Err(e) if e.kind() == ErrorKind::AddrInUse => Err(in_use(address)),
                Err(e) => Err(Failure::io(address, &e)),
            },
        }
    }

    /// Which file the socket is, if it is one.
    pub fn file(&self) -> Option<(u64, u64)> {
        match self {
            Address::Unix(path) => {
                let found = std::fs::symlink_metadata(path).ok()?;
                Some((found.dev(), found.ino()))
            }
            Address::Tcp(_) => None,
        }
    }

    /// Removes the socket, if it is that file still.
    pub fn remove(&self, file: Option<(u64, u64)>) {
        if let Address::Unix(path) = self
            && file.is_some()
            && file == self.file()
        {
            // Nobody listens on it; the next export removes it if this cannot.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// As the NBD URI that clients take.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "nbd://{address}"),
            Address::Unix(path) => {
                f.write_str("nbd+unix:///?socket=")?;
                path.as_os_str().as_bytes().iter().try_for_each(|byte| {
                    let plain = byte.is_ascii_alphanumeric() || b"/-._~".contains(byte);
                    match plain {
                        true => write!(f, "{}", char::from(*byte)),
                        false => write!(f, "%{byte:02X}"),
                    }
                })
            }
        }
    }
}

fn resolve(host: &str, port: u16) -> Result<Address, Failure> {
    let unknown = || {
        Failure::new(format!("there is no host {host:?}"))
            .fix("give one of this machine's addresses, such as 127.0.0.1")
    };
    let mut all = (host, port).to_socket_addrs().map_err(|_| unknown())?;
    all.next().map(Address::Tcp).ok_or_else(unknown)
}

fn check_path(path: &Path) -> Result<(), Failure> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(e) if e.kind() == ErrorKind::NotFound => return check_directory(path),
        Err(e) => return Err(Failure::io(path.display(), &e)),
    };
    if !found.file_type().is_socket() {
        return Err(Failure::new(format!("{} is not a socket", path.display()))
            .fix("choose another path for the socket"));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(in_use(path.display())),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|e| Failure::io(path.display(), &e))
        }
        Err(e) => Err(Failure::io(path.display(), &e)),
    }
}

fn check_directory(path: &Path) -> Result<(), Failure> {
    let directory = path.parent().unwrap_or(path);
    match directory.is_dir() {
        true => Ok(()),
        false => Err(
            Failure::new(format!("there is no directory {}", directory.display()))
                .fix("create it, or choose another path for the socket"),
        ),
    }
}

fn in_use(what: impl fmt::Display) -> Failure {
    Failure::new(format!("something listens on {what} already"))
        .fix("end it, or choose another address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_as_uris() {
        for (text, uri) in [
            ("unix:/a/b.sock", "nbd+unix:///?socket=/a/b.sock"),
            ("unix:/a b&c=%", "nbd+unix:///?socket=/a%20b%26c%3D%25"),
            ("127.0.0.1:10809", "nbd://127.0.0.1:10809"),
            ("[::1]:1", "nbd://[::1]:1"),
        ] {
            let address = Address::parse(text).map(|address| address.to_string());
            assert_eq!(address.ok().as_deref(), Some(uri), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let long = format!("unix:/{}", "a".repeat(PATH_MAX));
        for text in [
            "",
            "unix:",
            ":",
            ":1",
            "x",
            "127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:0",
            "127.0.0.1:65536",
            "127.0.0.1:+1",
            "::1:10809",
            "[::1]",
            "[::1:1",
            "[127.0.0.1]:1",
            "[x]:1",
            &long,
        ] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        assert!(Address::parse(&long[..long.len() - 1]).is_ok());
    }

    #[test]
    fn only_a_socket_without_a_listener_is_removed() {
        let dir = std::env::temp_dir().join(format!("holdfast-address.{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("s");
        let address = Address::Unix(path.clone());
        assert!(address.check().is_ok());
        std::fs::write(&path, "mine").unwrap();
        assert!(address.check().is_err() && path.exists());
        std::fs::remove_file(&path).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(address.check().is_err() && path.exists());
        let file = address.file();
        drop(listener);
        assert!(address.check().is_ok() && !path.exists());
        // Another one by the same name is not ours.
        std::fs::write(&path, "mine").unwrap();
        address.remove(Some((0, 0)));
        address.remove(None);
        assert!(path.exists() && file.is_some());
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(address.check().is_err());
    }
}
