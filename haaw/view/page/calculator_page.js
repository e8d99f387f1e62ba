// The calculator as a page of its own.

import { START, figuresOf, inKind, kindsOf, problemOf, size } from "./calculator_arithmetic.js";
import { beginCalculator, hashOf, settingFromHash } from "./calculator.js";

beginCalculator(document, JSON.parse(document.getElementById("calculator-data").textContent || "{}"));
globalThis.haawCalculator = { START, figuresOf, hashOf, inKind, kindsOf, problemOf, settingFromHash, size };
