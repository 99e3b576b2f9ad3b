# dbench: its whole load by two clients for some seconds; figures are per MB of its throughput.
prepare() { :; }

work() {
    local seconds=$((2 + N / 10))
    dbench -t "$seconds" -c /usr/share/dbench/client.txt -D . 2 >out
    awk -v seconds="$seconds" '/^Throughput/ { print "per", $2 * seconds }' out >&2
    grep -c Throughput out
}
