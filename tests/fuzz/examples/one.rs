//! Runs one target on files: `one TARGET FILE...`; with HF_TIMES=N each N times.

fn main() {
    let mut args = std::env::args().skip(1);
    let name = args.next().expect("a target");
    let times = std::env::var("HF_TIMES").map_or(1, |n| n.parse().expect("a number"));
    for file in args {
        let bytes = std::fs::read(file).expect("a file");
        let begun = std::time::Instant::now();
        (0..times).for_each(|_| holdfast_fuzz::run(&name, &bytes));
        eprintln!("{:?}", begun.elapsed() / times);
    }
}
