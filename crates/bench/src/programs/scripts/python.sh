# python: starts that import 60 modules, first from source, then from compiled files.
prepare() {
    local i
    mkdir app
    for ((i = 0; i < 60; i++)); do
        printf 'import json, os\ndef f(x):\n    return x + %d\n' $i >app/m$i.py
    done
    for ((i = 0; i < 60; i++)); do printf 'from app import m%d\n' $i; done >app/__init__.py
    printf 'import app\nprint(sum(getattr(app, f"m{i}").f(i) for i in range(60)))\n' >run.py
}

work() {
    local i
    for ((i = 0; i < (8 * N + 9) / 10; i++)); do python3 run.py; done
}
