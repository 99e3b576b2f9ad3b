# pip: a package of 200 modules installed from a wheel made here.
prepare() {
    python3 - $((20 * N)) <<'PYTHON'
import sys, zipfile

name, tag = "sample-1.0", "py3-none-any"
text = "def f(x):\n    return x + 1\n" * 20
files = {f"sample/m{i}.py": text for i in range(int(sys.argv[1]))}
files["sample/__init__.py"] = ""
info = "sample-1.0.dist-info"
files[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n"
files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: {tag}\n"
record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
with zipfile.ZipFile(f"{name}-{tag}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
    for path, text in {**files, f"{info}/RECORD": record}.items():
        wheel.writestr(path, text)
PYTHON
}

work() {
    pip3 install --quiet --no-index --no-deps --disable-pip-version-check \
        --root-user-action=ignore --no-cache-dir --target=site ./*.whl
    find site -name '*.py' | wc -l
}
