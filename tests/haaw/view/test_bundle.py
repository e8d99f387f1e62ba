"""The page's modules become one script, word for word, or a sentence says why not."""

import pytest

from haaw.view.bundle import PAGE, BundleError, bundle


def write(folder, **modules):
    for name, text in modules.items():
        (folder / f"{name}.js").write_text(text, encoding="utf-8")
    return folder


def test_a_module_stands_behind_those_that_it_imports(tmp_path):
    write(
        tmp_path,
        main='import { b as second } from "./b.js";\nsecond();\n',
        b='import { a } from "./a.js";\nexport function b() { return a; }\n',
        a="export const a = 1;\n",
    )
    script = bundle(folder=tmp_path)
    assert script.index("const a = 1;") < script.index("function b()") < script.index("second();")
    assert "const { b: second } = module_b;" in script
    assert "return { b };" in script
    assert "import" not in script
    assert "export" not in script


def test_two_modules_may_use_one_name_for_their_own(tmp_path):
    write(
        tmp_path,
        main='import { a } from "./a.js";\nconst own = 2;\n',
        a="const own = 1;\nexport const a = own;\n",
    )
    assert bundle(folder=tmp_path).count("const own") == 2


@pytest.mark.parametrize(
    "text",
    [
        'import * as all from "./a.js";\n',
        'import x from "./a.js";\n',
        "export default 1;\n",
        "export { x };\n",
    ],
)
def test_a_form_that_is_not_known_is_refused(tmp_path, text):
    write(tmp_path, main=text, a="export const x = 1;\n")
    with pytest.raises(BundleError, match="does not know"):
        bundle(folder=tmp_path)


def test_modules_in_a_ring_are_refused(tmp_path):
    write(
        tmp_path,
        main='import { a } from "./a.js";\n',
        a='import { m } from "./main.js";\nexport const a = 1;\n',
    )
    with pytest.raises(BundleError, match=r"main\.js -> a\.js -> main\.js"):
        bundle(folder=tmp_path)


def test_the_same_modules_give_the_same_script():
    assert bundle() == bundle()


def test_every_line_of_every_module_is_in_the_script():
    script = bundle().splitlines()
    for module in PAGE.glob("stage_*.js"):
        for line in module.read_text(encoding="utf-8").splitlines():
            assert line.startswith("import ") or line.removeprefix("export ") in script


def test_no_module_makes_markup_of_text():
    for module in PAGE.glob("*.js"):
        text = module.read_text(encoding="utf-8")
        for forbidden in ("innerHTML =", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert forbidden not in text, module.name
