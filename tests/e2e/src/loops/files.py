# Files whose content follows from their number: writes them, each durable before its number is
# printed, until it cannot; or checks those whose numbers it reads.
import hashlib
import os
import sys


def content(number):
    word = hashlib.sha256(str(number).encode()).digest()
    return (word * 2000)[: number * 7919 % 60000]


def path(number):
    return f"{directory}/{number % 7}/{number}"


def write(number):
    os.makedirs(os.path.dirname(path(number)), exist_ok=True)
    file = os.open(path(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    assert os.write(file, content(number)) == len(content(number))
    os.fsync(file)
    os.close(file)
    parent = os.open(os.path.dirname(path(number)), os.O_RDONLY)
    os.fsync(parent)
    os.close(parent)


verb, directory, first, end = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if verb == "write":
    top = os.open(directory, os.O_RDONLY)
    for number in range(first, end):
        try:
            write(number)
            if number < first + 7:
                os.fsync(top)
        except OSError:
            break
        print(number, flush=True)
else:
    count = 0
    for line in sys.stdin:
        number = int(line)
        with open(path(number), "rb") as file:
            if file.read() != content(number):
                sys.exit(f"file {number} is not as it was written")
        count += 1
    print(count)
