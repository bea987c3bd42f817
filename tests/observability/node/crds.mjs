// crds.mjs FILE.json: a list of the operator's resources; prints a list of complaints.
import {readFileSync} from "node:fs";
import * as v1 from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

const complaints = [];
for (const manifest of JSON.parse(readFileSync(process.argv[2], "utf8"))) {
  try {
    new v1[manifest.kind](manifest).validate();
  } catch (error) {
    complaints.push(`${manifest.kind}: ${error.message}`);
  }
}
console.log(JSON.stringify(complaints));
