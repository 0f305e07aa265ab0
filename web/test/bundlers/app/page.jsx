"use client";

import { useEffect, useState } from "react";
import { answer } from "../answer.js";

export default function Page() {
  const [text, setText] = useState("");
  useEffect(() => {
    answer().then(setText);
  }, []);
  return <main>{text}</main>;
}
