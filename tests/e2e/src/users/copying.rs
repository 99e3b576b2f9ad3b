//! `holdfast cp` by users who do not own the pool: their rights count, as in programs.

use super::{Shared, as_user};
use crate::bad_input::{Fixture, Stop, wrong};
use std::fs;
use std::os::unix::fs::chown;

/// A user copies out what is open, and in where that is allowed; all else is refused by name.
pub fn copying(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    let fill = "cd /hf; mkdir open closed in; chmod 700 closed; echo c >closed/c; chmod 777 in
        for n in $(seq 500); do echo $n >open/$n; done; echo s >open/secret; chmod 600 open/secret
        truncate -s 300M open/hole; ln -s 1 open/link; ln open/2 open/two; touch -d @86400 open/1
        chmod 4755 open/3; setfacl -m u:3002:rw open/4; setfattr -n user.a -v b open/5";
    shared.expect("3001", fill, "")?;
    let home = fixture.path("home");
    fs::create_dir(&home)?;
    chown(&home, Some(3002), Some(3002))?;
    let pool = shared.pool.to_string_lossy().into_owned();
    let shell = |user: &str, text: &str| {
        let mut command = as_user(user);
        command.arg("env");
        command.arg(format!("hf={}", fixture.holdfast.display()));
        command.arg(format!("pool={pool}"));
        command.args(["bash", "-c", &format!("cd {}; {text}", home.display())]);
        fixture.end_of(command)
    };
    let mut keys = as_user("3001");
    keys.arg(&fixture.holdfast).args(["kv", &pool, "ks", "put"]);
    keys.args(["k", "value"]);
    fixture.end_of(keys)?;
    let ended = shell("3002", WORK)?;
    let said = (ended.out + &ended.err).replace(&pool, "P");
    if said != SAID {
        return wrong(format!("user 3002 was told {said:?}, not {SAID:?}"));
    }
    // What another user's copies are is theirs.
    let shown = "cd /hf/in; stat -c '%n %a %u %s %Y' back/1 back/3 back/hole | sed 's/ [0-9]*$//'
        cat back/2 back/two; stat -c %h back/two; [ $(stat -c %b back/hole) = 0 ] && echo sparse
        getfacl -c back/4 | grep 3002; getfattr --only-values -n user.a back/5; echo";
    let wanted = "back/1 644 3002 2\nback/3 755 3002 2\nback/hole 644 3002 314572800\n2\n2\n2\n\
        sparse\nuser:3002:rw-\nb\n";
    shared.expect("3001", shown, wanted)?;
    shared.end()
}

const WORK: &str = r#"
say() { { "$hf" "$@" 2>&1 || echo "status $?"; } | sed -E 's/"[a-z_]+":0,?//g; s/,}/}/'; }
say cp -a "$pool:open" out --json; ls out | wc -l; stat -c '%a %u' out/1 out/3; stat -c %Y out/1
say cp -r "$pool:closed" x; say cp "$pool:closed/c" x; say cp out/1 "$pool:open"
say cp out/1 "$pool:"
say cp -a out "$pool:in/back" --json; say cp -a "$pool:in/back" "$pool:in/again" --json
say cp "$pool:ks/k" -; echo; say cp out/1 "$pool:ks"; say cp -rk out "$pool:mine"
say cp - "$pool:in/stream" <out/1; say cp "$pool:in/stream" -
say cp -n out/2 "$pool:in/stream"; say cp "$pool:in/stream" -
say cp -r "$pool:ks" "$pool:in/values"; say cp "$pool:in/values/k" -; echo
(umask 077; say cp -r out "$pool:in/masked")
"$hf" run --pool "$pool" -- stat -c %a /hf/in/masked /hf/in/masked/1
"#;

const SAID: &str = r#"holdfast: P:open/secret: permission denied.
{"files":501,"directories":1,"hard_links":1,"others":1,"bytes":1892,"failed":1}
status 1
503
644 3002
755 3002
86400
holdfast: P:closed: permission denied.
status 1
holdfast: P:closed/c: permission denied.
status 1
holdfast: P:open/1: permission denied.
status 1
holdfast: P:1: permission denied.
status 1
{"files":501,"directories":1,"hard_links":1,"others":1,"bytes":1892}
{"files":501,"directories":1,"hard_links":1,"others":1,"bytes":1892}
value
holdfast: P:ks/1: permission denied.
status 1
holdfast: P:mine: permission denied.
status 1
1
1
value
700
600
"#;
