//! Processes and users as people call them.
//!
//! Invariant: what the kernel does not say here is a number, or a question mark.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

/// Nothing is known.
const UNKNOWN: &str = "?";

/// A process as people call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    pub command: String,
    pub pid: u32,
    pub user: String,
}

/// The names of this machine's users.
pub struct Users(HashMap<u32, String>);

impl Users {
    /// As /etc/passwd has them.
    pub fn read() -> Users {
        Users::parse(&std::fs::read_to_string("/etc/passwd").unwrap_or_default())
    }

    fn parse(passwd: &str) -> Users {
        let users = passwd.lines().rev().filter_map(|line| {
            let mut fields = line.split(':');
            let (name, number) = (fields.next()?, fields.nth(1)?);
            Some((number.parse().ok()?, name.into()))
        });
        Users(users.collect())
    }

    fn name(&self, user: u32) -> String {
        self.0.get(&user).cloned().unwrap_or(user.to_string())
    }

    /// The process of this number; 0: it has none here.
    pub fn process(&self, pid: u32) -> Person {
        let place = format!("/proc/{pid}");
        let read = |name: &str| std::fs::read(format!("{place}/{name}")).ok();
        let command = read("comm").filter(|_| pid != 0).map(|comm| {
            let comm = String::from_utf8_lossy(&comm);
            comm.trim_end_matches('\n').replace(char::is_control, "?")
        });
        let user = std::fs::metadata(&place).ok().filter(|_| pid != 0);
        Person {
            command: command.unwrap_or(UNKNOWN.into()),
            pid,
            user: user.map_or(UNKNOWN.into(), |found| self.name(found.uid())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_their_first_name() {
        let users = Users::parse("root:x:0:0::/:/bin/sh\nadmin:x:0:0::/:\nada:x:7:\nbad\n:::\n");
        let names = [0, 7, 8].map(|user| users.name(user));
        assert_eq!(names, ["root", "ada", "8"]);
    }

    #[test]
    fn who_is_not_here_is_unknown() {
        let users = Users::parse("");
        let me = users.process(std::process::id());
        assert_eq!(me.user, rustix::process::geteuid().as_raw().to_string());
        assert_ne!(me.command, UNKNOWN);
        let nobody = users.process(0);
        assert_eq!((&nobody.command[..], &nobody.user[..]), (UNKNOWN, UNKNOWN));
    }
}
